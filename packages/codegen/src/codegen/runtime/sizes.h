// Symbolic sizes of a unit: bound from the inputs of a run, computed by a program of integers, and written into the
// frame's own copies of the words and types. A frame whose symbols are those of its last run is ready as it stands.
//
//   sizes       ::= root* place* limit* symbol* instruction* patch* patch*     patches of words, and patches of types
//   symbol      ::= input what dimension        value number k is symbol number k
//   instruction ::= op left right               its value is numbered on from there; operands are numbers of values
//   patch       ::= position value
//   root        ::= bytes start end             memory in the arena that is needed from one instruction to another
//   place       ::= item root distance          where an item of the arena lies: bytes from the start of a root
//   limit       ::= size most                   the unit does not run where a size is larger
extern "C" {
void *malloc(unsigned long);
void *calloc(unsigned long, unsigned long);
void free(void *);
}

struct Sizes {
  i64 symbols, instructions, word_patches, type_patches, roots, places, limits;  // how many there are of each
  i64 start, root_start, place_start, limit_start;                               // where they stand among the words
  i64 words, types;                                                              // the lengths of both tables
};

static inline i64 floor_divide(i64 a, i64 b) {
  i64 q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

// The values behind the symbols; false where an expression divides by zero.
static bool compute_sizes(const Sizes *s, const i64 *words, i64 *values) {
  const i64 *w = words + s->start + 3 * s->symbols;
  i64 *made = values + s->symbols;
  for (i64 k = 0; k < s->instructions; k++, w += 3) {
    i64 a = w[0] == CONSTANT ? w[1] : values[w[1]], b = w[0] == CONSTANT ? 0 : values[w[2]];
    switch (w[0]) {
      case CONSTANT: made[k] = a; break;
      case ADD: made[k] = a + b; break;
      case MULTIPLY: made[k] = a * b; break;
      case LEAST: made[k] = a < b ? a : b; break;
      case GREATEST: made[k] = a > b ? a : b; break;
      default:
        if (!b) return false;
        made[k] = w[0] == FLOOR_DIVIDE ? floor_divide(a, b) : a - floor_divide(a, b) * b;
    }
  }
  return true;
}

static void write_sizes(const Sizes *s, const i64 *values, i64 *words, i64 *types) {
  const i64 *w = words + s->start + 3 * (s->symbols + s->instructions);
  for (i64 k = 0; k < s->word_patches; k++, w += 2) words[w[0]] = values[w[1]];
  for (i64 k = 0; k < s->type_patches; k++, w += 2) types[w[0]] = values[w[1]];
}

static bool within_limits(const Sizes *s, const i64 *words) {
  const i64 *w = words + s->limit_start;
  for (i64 k = 0; k < s->limits; k++, w += 2)
    if (w[0] > w[1]) return false;
  return true;
}

static const i64 ALIGNMENT = 64;
static const i64 STAGGER = 320;  // bytes left free after a buffer: equal places in pages share cache sets

struct Block { i64 at, size, start, end; };

// Places the roots: the largest first, each at the lowest place that is free while it lives. The
// size of the whole; -1 without memory for the tables. `offsets` gets the place of each root.
static i64 place_roots(const Sizes *s, const i64 *words, i64 *offsets) {
  const i64 *root = words + s->root_start;
  i64 *order = (i64 *)malloc((unsigned long)(s->roots + 1) * sizeof(i64)), total = 0, placed = 0;
  Block *blocks = (Block *)malloc((unsigned long)(s->roots + 1) * sizeof(Block));
  if (!order || !blocks) { free(order); free(blocks); return -1; }
  for (i64 k = 0; k < s->roots; k++) {
    i64 at = k;
    for (; at > 0; at--) {
      const i64 *before = root + 3 * order[at - 1], *one = root + 3 * k;
      if (before[0] > one[0] || (before[0] == one[0] && before[1] <= one[1])) break;
      order[at] = order[at - 1];
    }
    order[at] = k;
  }
  for (i64 k = 0; k < s->roots; k++) {
    const i64 *one = root + 3 * order[k];
    i64 size = one[0] > 0 ? one[0] : 0, offset = 0, at = placed;
    for (i64 j = 0; j < placed; j++) {  // in the order of their places
      if (blocks[j].start > one[2] || one[1] > blocks[j].end) continue;
      if (blocks[j].at - offset >= size) break;
      i64 behind = (blocks[j].at + blocks[j].size + STAGGER + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
      if (behind > offset) offset = behind;
    }
    for (; at > 0 && blocks[at - 1].at > offset; at--) blocks[at] = blocks[at - 1];
    blocks[at] = {offset, size, one[1], one[2]};
    placed++;
    offsets[order[k]] = offset;
    if (offset + size > total) total = offset + size;
  }
  free(order);
  free(blocks);
  return total;
}

// The byte offsets of the items, which begin at `items`.
static i64 place_items(const Sizes *s, i64 *words, i64 *items) {
  i64 *offsets = (i64 *)malloc((unsigned long)(s->roots + 1) * sizeof(i64));
  i64 total = offsets ? place_roots(s, words, offsets) : -1;
  const i64 *w = words + s->place_start;
  for (i64 k = 0; total >= 0 && k < s->places; k++, w += 3) items[3 * w[0] + 1] = offsets[w[1]] + w[2];
  free(offsets);
  return total;
}
