/* The guard evaluator: a flat program over a tree of sources.
 *
 *   program  ::= node*                  a node's parent comes before it
 *   node     ::= fetch check*           one Python value, read once for all guards that use it
 *   fetch    ::= local | global | builtin | cell | attribute | item | dict_key | dict_value
 *              | type_of | call | object | frame
 *   check    ::= type_is | identity | weak_identity | function | equals | length | keys | has_key | lacks_key
 *              | has_attribute | lacks_attribute | tensor | same | not_same | distinct | symbol | state
 *              | relation            postfix expression over size symbols, right while it is not zero
 *   replay   ::= step*                  what of a run that held has to be looked at again
 *
 * Rule for side effects: no user code runs. A value that only user code could give (a property, a
 * __getattr__ other than nn.Module's, a __getitem__ or __len__ written in Python, a foreign
 * descriptor) counts as missing, and a guard that reads a missing value fails.
 */
#ifndef BYTECAP_GUARDS_H
#define BYTECAP_GUARDS_H

#include "evalframe.h"

/* ---- sources --------------------------------------------------------------------------- */

typedef enum {
    FETCH_LOCAL, FETCH_GLOBAL, FETCH_BUILTIN, FETCH_CELL, FETCH_ATTRIBUTE, FETCH_ITEM,
    FETCH_DICT_KEY, FETCH_DICT_VALUE, FETCH_TYPE_OF, FETCH_CALL, FETCH_OBJECT, FETCH_FRAME, FETCH_KINDS
} FetchKind;
extern const char *const fetch_names[FETCH_KINDS];

/* What was last found in one dict. While the dict's tag stands, so does the borrowed value. */
typedef struct {
    PyObject *dict;
    uint64_t tag;
    PyObject *value; /* NULL: nothing remembered */
} Memo;

typedef struct {
    FetchKind kind;
    int parent;         /* node index; -1: the frame */
    Py_ssize_t index;   /* item of a sequence (out of range for other keys), dict_key, dict_value; local: its slot, or -1 */
    PyObject *name;     /* name or key, or None; call: the arguments */
    PyObject *object;   /* object: the value; global: the module's dict, or None; call: the callee */
    int guard;          /* which guard to blame when the value is missing */
    Memo memo;
    int first_check, check_count;
    int is_volatile;    /* its dict changes between runs that hold: see guard_replay.c */
    int is_stable;      /* attribute: what was found last is borrowed from a dict or a type */
} Node;

/* Reads the node's value out of its parent's. 1: found; 0: missing. No error is left set.
 * *owned says whether *value is a new reference. */
int fetch_node(Node *node, PyObject *parent, const Scope *scope, PyObject **value, int *owned);
/* *stable: the value is borrowed from the object's type, or from a dict of fetch_attribute_dicts. */
int fetch_attribute(PyObject *base, PyObject *name, PyObject **value, int *owned, int *stable);
#define ATTRIBUTE_DICTS 4
/* The dicts that a lookup of an attribute goes through, borrowed: the object's own, and the registries of an nn.Module.
 * Gives their number. */
int fetch_attribute_dicts(PyObject *base, PyObject **dicts);
/* The value under a key, borrowed, or NULL; no error is left set. */
PyObject *fetch_dict_item(PyObject *dict, PyObject *key);
/* A collections.deque itself, no subclass. */
int guard_is_deque(PyObject *value);
/* Could user code give an attribute that fetch_attribute calls missing? */
int fetch_may_hide(PyObject *base, PyObject *name);
void fetch_set_module_type(PyObject *getattr_function);

/* ---- tensors --------------------------------------------------------------------------- */

#define TENSOR_MAX_RANK 64

typedef struct {
    int64_t dtype;   /* at::ScalarType */
    int64_t key_set; /* 0: does not matter */
    int64_t device_type, device_index;
    int64_t requires_grad;
    int64_t is_leaf; /* -1: does not matter */
    int64_t rank;
    int64_t dims[];  /* Sizes, then strides. A negative entry -1-k is bound to symbol k. */
} TensorSpec;

typedef struct {
    int64_t *value;
    char *bound;
} Symbols;

int tensor_reads_raw(void); /* at offsets: no Python object is made or called */
int tensor_matches(PyObject *type, const TensorSpec *spec, PyObject *value, Symbols *symbols);
int tensor_init(PyObject *module);

/* ---- torch's own state ----------------------------------------------------------------- */

#define STATE_WORDS 9
#define STATE_INCLUDED 5

/* In the order of bytecap.guards.native.read_state: grad and inference mode, default dtype, determinism, length of the
 * torch function mode stack, the thread's included and excluded dispatch keys (autocast, modes, transforms), autocast
 * dtypes of CPU and CUDA (-1: not enabled). */
typedef struct {
    int64_t word[STATE_WORDS];
} TorchState;

int torch_state_matches(const TorchState *expected); /* 1 or 0 */
int torch_state_init(PyObject *module);

/* ---- checks ---------------------------------------------------------------------------- */

/* One row a check: its name, when it holds for `value` (guard_check.c). */
#define CHECK_ROWS(ROW) \
    ROW(TYPE_IS, "type_is", (PyObject *)Py_TYPE(value) == check->argument) \
    ROW(IDENTITY, "identity", value == check->argument) \
    ROW(WEAK_IDENTITY, "weak_identity", is_referent(value, check->argument)) \
    ROW(FUNCTION, "function", is_same_function(value, check->argument)) \
    ROW(EQUALS, "equals", literals_equal(value, check->argument)) \
    ROW(LENGTH, "length", native_length(value) == check->number) \
    ROW(KEYS, "keys", keys_are(value, check->argument, check->as.memo)) \
    ROW(HAS_KEY, "has_key", has_key(value, check->argument) == 1) \
    ROW(LACKS_KEY, "lacks_key", has_key(value, check->argument) == 0) \
    ROW(HAS_ATTRIBUTE, "has_attribute", has_attribute(check, value) == 1) \
    ROW(LACKS_ATTRIBUTE, "lacks_attribute", has_attribute(check, value) == 0) \
    ROW(TENSOR, "tensor", tensor_matches(check->argument, check->as.tensor, value, symbols)) \
    ROW(SAME, "same", value == check->found[0]) \
    ROW(NOT_SAME, "not_same", value != check->found[0]) \
    ROW(DISTINCT, "distinct", are_distinct(check)) \
    ROW(SYMBOL, "symbol", bind_symbol(symbols, check->number, value)) \
    ROW(STATE, "state", torch_state_matches(check->as.state)) \
    ROW(RELATION, "relation", relation_holds(check, symbols))

#define CHECK_KIND(kind, name, holds) CHECK_##kind,
typedef enum { CHECK_ROWS(CHECK_KIND) CHECK_KINDS } CheckKind;

typedef struct {
    CheckKind kind;
    int guard;
    PyObject *argument;
    Py_ssize_t number; /* length; symbol index; distinct: so many nodes first are apart from each other and the rest */
    int count;         /* of the words that it was given, in one block with the space that it needs */
    union {
        int64_t *words; /* same, not_same, distinct: nodes; relation: (operation, operand)* */
        TensorSpec *tensor;
        TorchState *state;
        Memo *memo;     /* keys */
    } as;
    PyObject **found;  /* space for the values of nodes (borrowed, while it runs) and a set of them, open addressing */
    size_t size;       /* of the set: a power of two */
} Check;

/* The number of nodes whose values are to be put into `found` before. */
static inline int
compared_nodes(const Check *check)
{
    return check->kind == CHECK_SAME || check->kind == CHECK_NOT_SAME || check->kind == CHECK_DISTINCT ? check->count : 0;
}
int check_holds(Check *check, PyObject *value, Symbols *symbols);

/* Overflow, division by zero and unbound symbols fail. */
int relation_holds(const Check *check, const Symbols *symbols);
int relation_is_sound(const Check *check, Py_ssize_t symbol_count);
int relation_init(PyObject *module); /* OPERATIONS: the number of each operation, by its name */

/* ---- programs -------------------------------------------------------------------------- */

typedef struct Replay Replay;

typedef struct {
    PyObject_HEAD
    int node_count, check_count, input_count;
    Py_ssize_t symbol_count;
    Node *nodes;
    Check *checks;
    int *inputs;      /* nodes whose values the replacement code takes */
    Replay *replay;   /* NULL: nothing recorded */
    int replaying;    /* runs of the recording in progress: it must stay */
    int stale_node;   /* whose dict made the recording stale, or -1 */
    int wait, failures; /* runs until the next recording; recordings that served badly */
    Py_ssize_t replays; /* runs that the recording answered */
    PyObject *spec;   /* the data it was built from: holds every object the program refers to */
    PyObject *guards; /* what the caller wants to find again when a guard fails */
} GuardProgram;

typedef struct {
    int guard;        /* -1: all hold */
    PyObject *value;  /* new reference to what was found, or NULL when it was missing */
} Failure;

/* Values and symbols of one run. */
#define STACK_VALUES 128
#define STACK_SYMBOLS 32

typedef struct {
    PyObject **values; /* new references; the first `count` are set */
    int count;
    Symbols symbols;
    PyObject *value_space[STACK_VALUES];
    int64_t symbol_space[STACK_SYMBOLS];
    char bound_space[STACK_SYMBOLS];
    void *heap;
} Run;

int run_begin(Run *run, size_t values, size_t symbols); /* 0: no memory */
void run_end(Run *run);

int guard_kind_of(PyObject *name, const char *const *names, int count);
/* `count` ints of a tuple; 0: it has others, with an error set unless they are too few or too many. */
int read_words(PyObject *tuple, int64_t *words, Py_ssize_t count);
int guard_program_build(GuardProgram *self, PyObject *nodes, PyObject *inputs);
void guard_program_free_parts(GuardProgram *self);

/* 1 or 0; *failure (if wanted) says why not, *inputs (if wanted) gets a tuple when it holds. */
int guard_program_run(GuardProgram *program, const Scope *scope, Failure *failure,
                      PyObject **inputs);

/* 1: everything holds as when it was recorded. 0: not known. */
int replay_holds(GuardProgram *program, const Scope *scope, PyObject **inputs);
void replay_record(GuardProgram *program, const Run *run); /* of a run that held */
void replay_free(Replay *replay);

#endif
