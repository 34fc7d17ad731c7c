// Operators that the executor calls itself. Their words say each argument as the type of the parameter asks (see
// codegen/runtime/externs.py), and then (slot, type) of each result.
//
//   Handle: slot    Handle *: slot or -1    double: bits    double *: whether there is one, bits    number: itself
//   const i64 *, const i32 *, each with a length behind it: length, number*    const i64 **: the same; of none, nothing
struct Reader {
  const i64 *w;
  Handle *handles;
  i64 length;  // of the list before, until it is asked for; -1: of none
  const i64 *list;
  i32 flags[4];
  Result made[3];
  i64 count;

  const i64 *numbers() {
    list = w + 1;
    length = w[0];
    w = list + length;
    return list;
  }
};

template <class T> T next(Reader *r);
template <> inline Handle next(Reader *r) { return r->handles[*r->w++]; }
template <> inline Handle *next(Reader *r) { i64 slot = *r->w++; return slot < 0 ? nullptr : r->handles + slot; }
template <> inline double next(Reader *r) { return as_double(*r->w++); }
template <> inline double *next(Reader *r) { r->w += 2; return r->w[-2] ? (double *)(r->w - 1) : nullptr; }
template <> inline i32 next(Reader *r) { return (i32)*r->w++; }
template <> inline const i64 *next(Reader *r) { return r->numbers(); }
template <> inline const i64 **next(Reader *r) { r->numbers(); return r->length ? &r->list : nullptr; }
template <> inline Result *next(Reader *r) { return r->made + r->count++; }
template <> inline i64 next(Reader *r) {
  i64 length = r->length;
  r->length = -1;
  return length < 0 ? *r->w++ : length;
}
template <> inline const i32 *next(Reader *r) {
  const i64 *from = r->numbers();
  for (i64 k = 0; k < r->length; k++) r->flags[k] = (i32)from[k];
  return r->flags;
}

template <class... P> struct Call {  // made in braces, its arguments are read in order
  i32 failed;
  Call(i32 (*function)(P...), P... arguments) : failed(function(arguments...)) {}
};

template <class... P> static bool call_operator(Run *run, const i64 *w, i32 (*function)(P...)) {
  Reader r = {w, run->frame->handle, -1};
  return !Call<P...>{function, next<P>(&r)...}.failed && results(run, r.w, r.made, r.count);
}

// What is copied before and behind a convolution that is a product (see cpu_products.py). All is float32 in two
// dimensions; sizes and steps are those of tensors: image, channel, row, column.
struct Windows {
  const i64 *step;                           // of the images
  const i64 *image, *kernel, *out;           // sizes: of the images; of the weight (features first); of the result
  const i64 *stride, *padding, *dilation;    // of rows and of columns
};

// rows: (windows, channels * kernel)
static void copy_patches(const float *x, const Windows *g, float *rows) {
  const i64 channels = g->kernel[1], height = g->kernel[2], width = g->kernel[3], taps = height * width;
  for (i64 image = 0; image < g->out[0]; image++)
    for (i64 at = 0; at < g->out[2] * g->out[3]; at++, rows += channels * taps)
      for (i64 tap = 0; tap < taps; tap++) {
        i64 row = at / g->out[3] * g->stride[0] - g->padding[0] + tap / width * g->dilation[0];
        i64 column = at % g->out[3] * g->stride[1] - g->padding[1] + tap % width * g->dilation[1];
        bool inside = row >= 0 && row < g->image[2] && column >= 0 && column < g->image[3];
        const float *from = x + image * g->step[0] + row * g->step[2] + column * g->step[3];
        for (i64 c = 0; c < channels; c++) rows[c * taps + tap] = inside ? from[c * g->step[1]] : 0.0f;
      }
}

// rows: (windows, features), to a tensor of the result's sizes with these steps
static void copy_images(const float *rows, const Windows *g, const float *bias, const i64 *step, float *to) {
  const i64 features = g->kernel[0];
  for (i64 image = 0; image < g->out[0]; image++)
    for (i64 row = 0; row < g->out[2]; row++)
      for (i64 column = 0; column < g->out[3]; column++, rows += features) {
        float *place = to + image * step[0] + row * step[2] + column * step[3];
        for (i64 f = 0; f < features; f++) place[f * step[1]] = rows[f] + (bias ? bias[f] : 0.0f);
      }
}

// A convolution in two dimensions in float32, neither transposed nor in groups, as a product of matrices.
static bool few_windows(Run *run, const i64 *w) {  // the words of a convolution
  const Unit *unit = run->unit;
  const Torch *t = unit->torch;
  Handle *h = run->frame->handle, part[3] = {nullptr, nullptr, nullptr};
  Result made[1] = {};
  const i64 *to = w + 17, *type = run->frame->types + to[1], *out = sizes_of(type);
  i64 *sizes, *steps, *kernel, *turned, *along = nullptr;
  if (t->sizes(h[w[0]], &sizes) || t->strides(h[w[0]], &steps)) return false;
  if (t->sizes(h[w[1]], &kernel) || t->strides(h[w[1]], &turned)) return false;
  if (w[2] >= 0 && t->strides(h[w[2]], &along)) return false;
  const i64 taps = kernel[2] * kernel[3], width = kernel[1] * taps, rows = out[0] * out[2] * out[3];
  const bool in_order = turned[0] == width && turned[1] == taps && (taps == 1 || (turned[2] == kernel[3] && turned[3] == 1));
  if (!in_order || (along && *along != 1) || !rows) return call_operator(run, w, t->convolution);
  void *x, *weight, *bias = nullptr, *space, *memory;
  if (t->data_ptr(h[w[0]], &x) || t->data_ptr(h[w[1]], &weight) || (w[2] >= 0 && t->data_ptr(h[w[2]], &bias))) return false;
  if (posix_memalign(&space, 64, (unsigned long)(rows * (width + kernel[0])) * sizeof(float))) return false;
  float *patches = (float *)space, *product = patches + rows * width;
  Windows g = {steps, sizes, kernel, out, w + 4, w + 7, w + 10};
  copy_patches((float *)x, &g, patches);
  struct { void *memory; i64 sizes[2], steps[2]; } matrix[3] = {
      {patches, {rows, width}, {width, 1}}, {weight, {width, kernel[0]}, {1, width}}, {product, {rows, kernel[0]}, {kernel[0], 1}}};
  bool good = true;
  for (i64 k = 0; good && k < 3; k++)
    good = !t->from_blob(matrix[k].memory, 2, matrix[k].sizes, matrix[k].steps, 0, dtype_of(type), 0, unit->index, &part[k]);
  good = good && !t->mm(part[2], part[0], part[1]);
  good = good && !t->empty_strided(type[1], out, strides_of(type), dtype_of(type), 0, unit->index, &made->handle);
  good = good && !t->data_ptr(made->handle, &memory);
  if (good) copy_images(product, &g, (float *)bias, strides_of(type), (float *)memory);
  for (i64 k = 0; k < 3; k++)
    if (part[k]) t->destroy(part[k]);
  free(space);
  return results(run, to, made, 1) && good;
}
