/* The guard evaluator: a flat program over a tree of sources.
 *
 *   program  ::= node* relation*        a node's parent comes before it
 *   node     ::= fetch check*           one Python value, read once for all guards that use it
 *   fetch    ::= local | global | builtin | cell | attribute | item | dict_key | dict_value
 *              | type_of | call | object | frame
 *   check    ::= type_is | identity | weak_identity | function | equals | length | keys | has_key | lacks_key
 *              | has_attribute | lacks_attribute | tensor | same | not_same | distinct | symbol | state
 *   relation ::= postfix expression over size symbols, right while it is not zero
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
    PyTypeObject *type;
    int rank;
    int dtype;             /* at::ScalarType */
    int device_type, device_index;
    int requires_grad;
    int is_leaf;           /* -1: does not matter */
    uint64_t key_set;      /* 0: does not matter */
    /* Sizes, then strides. A negative entry -1-k is bound to symbol k. */
    int64_t dims[];
} TensorSpec;

typedef struct {
    int64_t *value;
    char *bound;
} Symbols;

int tensor_reads_raw(void); /* at offsets: no Python object is made or called */
int tensor_matches(const TensorSpec *spec, PyObject *value, Symbols *symbols);
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
int torch_state_parse(PyObject *tuple, TorchState *state);

/* ---- checks ---------------------------------------------------------------------------- */

/* One row a check: its name, what its argument is (guard_build.c), when it holds for `value` (guard_check.c). */
#define CHECK_ROWS(ROW) \
    ROW(TYPE_IS, "type_is", OBJECT, (PyObject *)Py_TYPE(value) == check->argument) \
    ROW(IDENTITY, "identity", OBJECT, value == check->argument) \
    ROW(WEAK_IDENTITY, "weak_identity", WEAK_REFERENCE, is_referent(value, check->argument)) \
    ROW(FUNCTION, "function", FUNCTION_STATE, is_same_function(value, check->argument)) \
    ROW(EQUALS, "equals", OBJECT, literals_equal(value, check->argument)) \
    ROW(LENGTH, "length", NUMBER, native_length(value) == check->as.number) \
    ROW(KEYS, "keys", KEYS, keys_are(value, check->argument, check->as.memo)) \
    ROW(HAS_KEY, "has_key", OBJECT, has_key(value, check->argument) == 1) \
    ROW(LACKS_KEY, "lacks_key", OBJECT, has_key(value, check->argument) == 0) \
    ROW(HAS_ATTRIBUTE, "has_attribute", TEXT, has_attribute(check, value) == 1) \
    ROW(LACKS_ATTRIBUTE, "lacks_attribute", TEXT, has_attribute(check, value) == 0) \
    ROW(TENSOR, "tensor", TENSOR_SPEC, tensor_matches(check->as.tensor, value, symbols)) \
    ROW(SAME, "same", NODE, value == values[check->as.number]) \
    ROW(NOT_SAME, "not_same", NODE, value != values[check->as.number]) \
    ROW(DISTINCT, "distinct", NODES, are_distinct_nodes(check->as.distinct, values)) \
    ROW(SYMBOL, "symbol", SYMBOL, bind_symbol(symbols, check->as.number, value)) \
    ROW(STATE, "state", STATE, torch_state_matches(check->as.state))

#define CHECK_KIND(kind, name, argument, holds) CHECK_##kind,
typedef enum { CHECK_ROWS(CHECK_KIND) CHECK_KINDS } CheckKind;

/* The values of the first `apart` nodes differ from each other and from those of the rest. */
typedef struct {
    int count, apart;
    size_t size;       /* of the table: a power of two */
    PyObject **found;  /* borrowed, while the check runs: the value of each node */
    PyObject **table;  /* the set of the values that came first: open addressing */
    int nodes[];
} Distinct;

typedef struct {
    CheckKind kind;
    int guard;
    PyObject *argument;
    union {
        Py_ssize_t number;  /* length; node index of same; symbol index */
        TensorSpec *tensor;
        TorchState *state;
        Memo *memo;         /* keys */
        Distinct *distinct;
    } as;
} Check;

/* `values` are the nodes' values so far (for same, not_same and distinct). */
int check_holds(Check *check, PyObject *value, PyObject **values, Symbols *symbols);
/* Of the values in `found`. */
int are_distinct(Distinct *distinct);

/* ---- relations ------------------------------------------------------------------------- */

typedef enum {
    OP_CONST, OP_SYMBOL, OP_ADD, OP_SUB, OP_MUL, OP_FLOORDIV, OP_MOD, OP_MIN, OP_MAX,
    OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_KINDS
} OpKind;
typedef struct {
    OpKind kind;
    int64_t operand;
} Op;

typedef struct {
    Op *ops;
    int count;
    int guard;
} Relation;

int relation_parse(PyObject *item, Py_ssize_t symbol_count, Relation *relation);
/* Overflow, division by zero and unbound symbols fail. */
int relation_holds(const Relation *relation, const Symbols *symbols);

/* ---- programs -------------------------------------------------------------------------- */

typedef struct Replay Replay;

typedef struct {
    PyObject_HEAD
    int node_count, check_count, relation_count, input_count;
    Py_ssize_t symbol_count;
    Node *nodes;
    Check *checks;
    Relation *relations;
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
int guard_program_build(GuardProgram *self, PyObject *nodes, PyObject *relations,
                        PyObject *inputs);
void guard_program_free_parts(GuardProgram *self);

/* 1 or 0; *failure (if wanted) says why not, *inputs (if wanted) gets a tuple when it holds. */
int guard_program_run(GuardProgram *program, const Scope *scope, Failure *failure,
                      PyObject **inputs);

/* 1: everything holds as when it was recorded. 0: not known. */
int replay_holds(GuardProgram *program, const Scope *scope, PyObject **inputs);
void replay_record(GuardProgram *program, const Run *run); /* of a run that held */
void replay_free(Replay *replay);

#endif
