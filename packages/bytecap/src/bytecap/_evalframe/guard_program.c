/* GuardProgram: nodes, checks and relations built once from Python data, run in C. */
#include "guards.h"
#include <structmember.h>

PyTypeObject *guard_program_type;

int torch_symbols_init(PyObject *module);
int torch_state_parse(PyObject *tuple, TorchState *state);
TensorSpec *tensor_spec_parse(PyObject *tuple, Py_ssize_t symbol_count);

/* ---- relations: postfix integer expressions -------------------------------------------- */

typedef enum {
    OP_CONST, OP_SYMBOL, OP_ADD, OP_SUB, OP_MUL, OP_FLOORDIV, OP_MOD, OP_POW, OP_MIN, OP_MAX,
    OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_KINDS
} OpKind;
static const char *const op_names[OP_KINDS] = {
    "const", "symbol", "+", "-", "*", "//", "%", "**", "min", "max",
    "==", "!=", "<", "<=", ">", ">=",
};

typedef struct {
    OpKind kind;
    int64_t operand;
} Op;

typedef struct {
    Op *ops;
    int count;
    int guard;
} Relation;

#define RELATION_STACK 64

static int
floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        return 0;
    }
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && ((*remainder < 0) != (b < 0))) {
        *quotient -= 1;
        *remainder += b;
    }
    return 1;
}

static int
power(int64_t base, int64_t exponent, int64_t *result)
{
    *result = 1;
    if (exponent < 0) {
        return 0;
    }
    for (int64_t i = 0; i < exponent; i++) {
        if (__builtin_mul_overflow(*result, base, result)) {
            return 0;
        }
    }
    return 1;
}

static int
apply(OpKind kind, int64_t a, int64_t b, int64_t *result)
{
    int64_t other;
    switch (kind) {
    case OP_ADD: return !__builtin_add_overflow(a, b, result);
    case OP_SUB: return !__builtin_sub_overflow(a, b, result);
    case OP_MUL: return !__builtin_mul_overflow(a, b, result);
    case OP_FLOORDIV: return floor_divide(a, b, result, &other);
    case OP_MOD: return floor_divide(a, b, &other, result);
    case OP_POW: return power(a, b, result);
    case OP_MIN: *result = a < b ? a : b; return 1;
    case OP_MAX: *result = a > b ? a : b; return 1;
    case OP_EQ: *result = a == b; return 1;
    case OP_NE: *result = a != b; return 1;
    case OP_LT: *result = a < b; return 1;
    case OP_LE: *result = a <= b; return 1;
    case OP_GT: *result = a > b; return 1;
    default: *result = a >= b; return 1;
    }
}

/* Overflow, division by zero and unbound symbols fail. */
static int
relation_holds(const Relation *relation, const Symbols *symbols)
{
    int64_t stack[RELATION_STACK];
    int top = 0;
    for (int i = 0; i < relation->count; i++) {
        const Op *op = &relation->ops[i];
        if (op->kind == OP_CONST) {
            stack[top++] = op->operand;
        } else if (op->kind == OP_SYMBOL) {
            if (!symbols->bound[op->operand]) {
                return 0;
            }
            stack[top++] = symbols->value[op->operand];
        } else {
            top--;
            if (!apply(op->kind, stack[top - 1], stack[top], &stack[top - 1])) {
                return 0;
            }
        }
    }
    return stack[0] != 0;
}

/* ---- the object ------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    int node_count, check_count, relation_count;
    Py_ssize_t symbol_count;
    Node *nodes;
    Check *checks;
    Relation *relations;
    PyObject *spec;   /* the data it was built from: holds every object the program refers to */
    PyObject *guards; /* what the caller wants to find again when a guard fails */
} GuardProgram;

typedef struct {
    int guard;        /* -1: all hold */
    PyObject *value;  /* new reference to what was found, or NULL when it was missing */
} Failure;

#define STACK_VALUES 128
#define STACK_SYMBOLS 32

typedef struct {
    PyObject **values; /* new references; the first `count` are set */
    int count;
    uint64_t id;       /* no two runs share one; guarded by the GIL */
    Symbols symbols;
    PyObject *value_space[STACK_VALUES];
    int64_t symbol_space[STACK_SYMBOLS];
    char bound_space[STACK_SYMBOLS];
    void *heap;
} Run;

static int
run_begin(Run *run, const GuardProgram *program)
{
    size_t nodes = (size_t)program->node_count, symbols = (size_t)program->symbol_count;
    static uint64_t last_id = 0;
    run->id = ++last_id;
    run->count = 0;
    run->heap = NULL;
    run->values = run->value_space;
    run->symbols.value = run->symbol_space;
    run->symbols.bound = run->bound_space;
    if (nodes > STACK_VALUES || symbols > STACK_SYMBOLS) {
        run->heap = PyMem_Malloc(nodes * sizeof(PyObject *) + symbols * (sizeof(int64_t) + 1));
        if (run->heap == NULL) {
            return 0;
        }
        run->values = run->heap;
        run->symbols.value = (int64_t *)(run->values + nodes);
        run->symbols.bound = (char *)(run->symbols.value + symbols);
    }
    memset(run->symbols.bound, 0, symbols);
    return 1;
}

static void
run_end(Run *run)
{
    while (run->count > 0) {
        Py_DECREF(run->values[--run->count]);
    }
    PyMem_Free(run->heap);
}

static int
fail(Failure *failure, int guard, PyObject *value)
{
    if (failure != NULL) {
        failure->guard = guard;
        failure->value = Py_XNewRef(value);
    }
    return 0;
}

static int
run_node(GuardProgram *program, Run *run, int index, const Scope *scope, Failure *failure)
{
    Node *node = &program->nodes[index];
    PyObject *parent = node->parent < 0 ? NULL : run->values[node->parent];
    PyObject *value = NULL;
    int owned = 0;
    int found = node->kind == FETCH_ATTRIBUTE
                    ? fetch_attribute_in_group(node, program->nodes[node->parent].group, run->id,
                                               parent, &value, &owned)
                    : fetch_node(node, parent, scope, &value, &owned);
    if (!found) {
        return fail(failure, node->guard, NULL);
    }
    if (!owned) {
        Py_INCREF(value); /* reading the next value may let go of what holds this one */
    }
    run->values[run->count++] = value;
    for (int i = 0; i < node->check_count; i++) {
        Check *check = &program->checks[node->first_check + i];
        if (!check_holds(check, value, run->values, &run->symbols)) {
            return fail(failure, check->guard, value);
        }
    }
    return 1;
}

static int
run_program(GuardProgram *program, const Scope *scope, Failure *failure)
{
    Run run;
    if (program->spec == NULL || !run_begin(&run, program)) {
        return fail(failure, 0, NULL); /* cleared by the garbage collector, or no memory */
    }
    int holds = 1;
    for (int i = 0; holds && i < program->node_count; i++) {
        holds = run_node(program, &run, i, scope, failure);
    }
    for (int i = 0; holds && i < program->relation_count; i++) {
        if (!relation_holds(&program->relations[i], &run.symbols)) {
            holds = fail(failure, program->relations[i].guard, NULL);
        }
    }
    run_end(&run);
    return holds;
}

int
guard_program_check(PyObject *program, const Scope *scope)
{
    return run_program((GuardProgram *)program, scope, NULL);
}

/* ---- building -------------------------------------------------------------------------- */

static int
kind_of(PyObject *name, const char *const *names, int count)
{
    for (int i = 0; PyUnicode_Check(name) && i < count; i++) {
        if (PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
            return i;
        }
    }
    PyErr_Format(PyExc_ValueError, "unknown operation %R in a guard program", name);
    return -1;
}

static int
parse_check(GuardProgram *self, PyObject *item, Check *check, int node)
{
    PyObject *kind;
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "OOi", &kind, &check->argument, &check->guard)) {
        return -1;
    }
    int code = kind_of(kind, check_names, CHECK_KINDS);
    if (code < 0) {
        return -1;
    }
    check->as.number = 0;
    check->kind = (CheckKind)code;
    switch (check->kind) {
    case CHECK_LENGTH:
    case CHECK_SAME:
    case CHECK_NOT_SAME:
    case CHECK_SYMBOL:
        check->as.number = PyLong_AsSsize_t(check->argument);
        break;
    case CHECK_TENSOR:
        check->as.tensor = tensor_spec_parse(check->argument, self->symbol_count);
        return check->as.tensor == NULL ? -1 : 0;
    case CHECK_STATE:
        check->as.state = PyMem_Calloc(1, sizeof(TorchState));
        return check->as.state == NULL ? -1 : torch_state_parse(check->argument, check->as.state);
    case CHECK_KEYS:
        check->as.memo = PyMem_Calloc(1, sizeof(Memo));
        return check->as.memo != NULL && PyTuple_Check(check->argument) ? 0 : -1;
    case CHECK_HAS_ATTRIBUTE:
    case CHECK_LACKS_ATTRIBUTE:
        return PyUnicode_Check(check->argument) ? 0 : -1;
    default:
        return 0;
    }
    if (check->as.number == -1 && PyErr_Occurred()) {
        return -1;
    }
    Py_ssize_t bound = check->kind == CHECK_SYMBOL ? self->symbol_count
                       : check->kind == CHECK_LENGTH ? PY_SSIZE_T_MAX : node;
    return check->as.number >= 0 && check->as.number < bound ? 0 : -1;
}

static int
parse_local(PyObject *argument, Node *node)
{
    return PyArg_ParseTuple(argument, "Ui", &node->name, &node->slot) ? 0 : -1;
}

static int
parse_named(PyObject *argument, Node *node) /* (name, dict or None) */
{
    if (!PyArg_ParseTuple(argument, "UO", &node->name, &node->object)) {
        return -1;
    }
    if (node->object == Py_None) {
        node->object = NULL;
    }
    return node->object == NULL || PyDict_Check(node->object) ? 0 : -1;
}

static int
parse_fetch(PyObject *argument, Node *node)
{
    switch (node->kind) {
    case FETCH_LOCAL:
        return parse_local(argument, node);
    case FETCH_GLOBAL:
    case FETCH_BUILTIN:
        return parse_named(argument, node);
    case FETCH_CELL:
    case FETCH_ATTRIBUTE:
        node->name = argument;
        return PyUnicode_Check(argument) ? 0 : -1;
    case FETCH_ITEM:
        node->name = argument;
        node->is_index = PyLong_Check(argument);
        if (node->is_index) {
            int overflow = 0;
            node->index = (Py_ssize_t)PyLong_AsLongAndOverflow(argument, &overflow);
            node->is_index = overflow == 0;
        }
        return 0;
    case FETCH_DICT_KEY:
    case FETCH_DICT_VALUE:
        node->index = PyLong_AsSsize_t(argument);
        return PyErr_Occurred() ? -1 : 0;
    case FETCH_OBJECT:
        node->object = argument;
        return 0;
    default:
        return 0;
    }
}

static int
fetch_needs_parent(FetchKind kind)
{
    return kind == FETCH_ATTRIBUTE || kind == FETCH_ITEM || kind == FETCH_DICT_KEY ||
           kind == FETCH_DICT_VALUE || kind == FETCH_TYPE_OF;
}

/* (parent, fetch, argument, checks, guard) */
static int
parse_node(GuardProgram *self, PyObject *item, int index, int *next_check)
{
    Node *node = &self->nodes[index];
    PyObject *kind, *argument, *checks;
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "iOOO!i", &node->parent, &kind, &argument,
                                                  &PyTuple_Type, &checks, &node->guard)) {
        return -1;
    }
    int code = kind_of(kind, fetch_names, FETCH_KINDS);
    if (code < 0) {
        return -1;
    }
    node->kind = (FetchKind)code;
    if (node->parent < -1 || node->parent >= index ||
        (node->parent < 0 && fetch_needs_parent(node->kind)) || parse_fetch(argument, node) < 0) {
        return -1;
    }
    if (node->kind == FETCH_ATTRIBUTE && self->nodes[node->parent].group == NULL) {
        Group *group = PyMem_Calloc(1, sizeof(Group));
        self->nodes[node->parent].group = group;
        if (group == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    node->first_check = *next_check;
    node->check_count = (int)PyTuple_GET_SIZE(checks);
    for (int i = 0; i < node->check_count; i++) {
        /* same and not_same may name this node's predecessors only */
        if (parse_check(self, PyTuple_GET_ITEM(checks, i), &self->checks[(*next_check)++],
                        index) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ((op, operand)*, guard) */
static int
parse_relation(GuardProgram *self, PyObject *item, Relation *relation)
{
    PyObject *ops, *kind;
    long long operand;
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "O!i", &PyTuple_Type, &ops, &relation->guard)) {
        return -1;
    }
    relation->count = (int)PyTuple_GET_SIZE(ops);
    relation->ops = PyMem_Calloc((size_t)relation->count + 1, sizeof(Op));
    int depth = 0, deepest = 0;
    for (int i = 0; relation->ops != NULL && i < relation->count; i++) {
        PyObject *op = PyTuple_GET_ITEM(ops, i);
        if (!PyTuple_Check(op) || !PyArg_ParseTuple(op, "OL", &kind, &operand)) {
            return -1;
        }
        int code = kind_of(kind, op_names, OP_KINDS);
        if (code < 0 || (code == OP_SYMBOL && (operand < 0 || operand >= self->symbol_count))) {
            return -1;
        }
        relation->ops[i] = (Op){(OpKind)code, operand};
        if (code > OP_SYMBOL && depth < 2) {
            return -1;
        }
        depth += code <= OP_SYMBOL ? 1 : -1;
        deepest = depth > deepest ? depth : deepest;
    }
    return relation->ops != NULL && depth == 1 && deepest <= RELATION_STACK ? 0 : -1;
}

static void
program_free_parts(GuardProgram *self)
{
    for (int i = 0; self->checks != NULL && i < self->check_count; i++) {
        CheckKind kind = self->checks[i].kind;
        if (kind == CHECK_TENSOR || kind == CHECK_STATE || kind == CHECK_KEYS) {
            PyMem_Free(self->checks[i].as.memo); /* the union's pointers are freed alike */
        }
    }
    for (int i = 0; self->relations != NULL && i < self->relation_count; i++) {
        PyMem_Free(self->relations[i].ops);
    }
    for (int i = 0; self->nodes != NULL && i < self->node_count; i++) {
        PyMem_Free(self->nodes[i].group);
    }
    PyMem_Free(self->nodes);
    PyMem_Free(self->checks);
    PyMem_Free(self->relations);
    self->nodes = NULL;
    self->checks = NULL;
    self->relations = NULL;
}

static int
count_checks(PyObject *nodes)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(nodes); i++) {
        PyObject *node = PyTuple_GET_ITEM(nodes, i);
        if (PyTuple_Check(node) && PyTuple_GET_SIZE(node) == 5 &&
            PyTuple_Check(PyTuple_GET_ITEM(node, 3))) {
            total += PyTuple_GET_SIZE(PyTuple_GET_ITEM(node, 3));
        }
    }
    return (int)total;
}

static int
program_build(GuardProgram *self, PyObject *nodes, PyObject *relations)
{
    self->node_count = (int)PyTuple_GET_SIZE(nodes);
    self->relation_count = (int)PyTuple_GET_SIZE(relations);
    self->check_count = count_checks(nodes);
    self->nodes = PyMem_Calloc((size_t)self->node_count + 1, sizeof(Node));
    self->checks = PyMem_Calloc((size_t)self->check_count + 1, sizeof(Check));
    self->relations = PyMem_Calloc((size_t)self->relation_count + 1, sizeof(Relation));
    if (self->nodes == NULL || self->checks == NULL || self->relations == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int next_check = 0, failed = 0;
    for (int i = 0; !failed && i < self->node_count; i++) {
        failed = parse_node(self, PyTuple_GET_ITEM(nodes, i), i, &next_check) < 0;
    }
    for (int i = 0; !failed && i < self->relation_count; i++) {
        failed = parse_relation(self, PyTuple_GET_ITEM(relations, i), &self->relations[i]) < 0;
    }
    if (failed && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "malformed guard program");
    }
    return failed ? -1 : 0;
}

static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"nodes", "relations", "symbol_count", "guards", NULL};
    PyObject *nodes, *relations = NULL, *guards = Py_None;
    Py_ssize_t symbols = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O!nO:GuardProgram", names, &PyTuple_Type,
                                     &nodes, &PyTuple_Type, &relations, &symbols, &guards)) {
        return NULL;
    }
    GuardProgram *self = (GuardProgram *)type->tp_alloc(type, 0);
    PyObject *none = PyTuple_New(0);
    if (self == NULL || none == NULL) {
        Py_XDECREF((PyObject *)self);
        Py_XDECREF(none);
        return NULL;
    }
    relations = relations != NULL ? relations : none;
    self->symbol_count = symbols;
    self->guards = Py_NewRef(guards);
    self->spec = PyTuple_Pack(2, nodes, relations);
    Py_DECREF(none);
    if (self->spec == NULL || program_build(self, nodes, relations) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
program_traverse(PyObject *object, visitproc visit, void *arg)
{
    GuardProgram *self = (GuardProgram *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->spec);
    Py_VISIT(self->guards);
    return 0;
}

static int
program_clear(PyObject *object)
{
    GuardProgram *self = (GuardProgram *)object;
    /* Nodes borrow from `spec`; run_program refuses a program without one. */
    program_free_parts(self);
    self->node_count = self->check_count = self->relation_count = 0;
    Py_CLEAR(self->spec);
    Py_CLEAR(self->guards);
    return 0;
}

static void
program_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    program_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

/* ---- from Python ----------------------------------------------------------------------- */

static int
scope_of(PyObject *object, Scope *scope)
{
    memset(scope, 0, sizeof *scope);
    if (Py_TYPE(object) == frame_view_type) {
        FrameView *view = (FrameView *)object;
        scope->named_locals = view->locals;
        scope->function = view->function;
        scope->globals = view->globals;
        scope->builtins = view->builtins;
        scope->cells = view->cells;
        scope->code = (PyCodeObject *)view->code;
        return 0;
    }
    if (PyDict_Check(object)) {
        scope->named_locals = object;
        return 0;
    }
    PyErr_SetString(PyExc_TypeError, "expected a FrameView or a dict of locals");
    return -1;
}

static PyObject *
program_check(PyObject *self, PyObject *object)
{
    Scope scope;
    if (scope_of(object, &scope) < 0) {
        return NULL;
    }
    return PyBool_FromLong(run_program((GuardProgram *)self, &scope, NULL));
}

/* failure(scope) -> None | (guard index, found, value) */
static PyObject *
program_failure(PyObject *self, PyObject *object)
{
    Scope scope;
    Failure failure = {-1, NULL};
    if (scope_of(object, &scope) < 0) {
        return NULL;
    }
    if (run_program((GuardProgram *)self, &scope, &failure)) {
        Py_RETURN_NONE;
    }
    PyObject *value = failure.value != NULL ? failure.value : Py_NewRef(Py_None);
    return Py_BuildValue("(iNN)", failure.guard, PyBool_FromLong(failure.value != NULL), value);
}

/* values(scope, missing) -> tuple: every node's value, without any check */
static PyObject *
program_values(PyObject *object, PyObject *args)
{
    GuardProgram *self = (GuardProgram *)object;
    PyObject *where, *missing;
    Scope scope;
    if (!PyArg_ParseTuple(args, "OO", &where, &missing) || scope_of(where, &scope) < 0) {
        return NULL;
    }
    PyObject *found = PyTuple_New(self->node_count);
    for (int i = 0; found != NULL && i < self->node_count; i++) {
        Node *node = &self->nodes[i];
        PyObject *parent = node->parent < 0 ? NULL : PyTuple_GET_ITEM(found, node->parent);
        PyObject *value = NULL;
        int owned = 0;
        int stable, known = parent != missing;
        if (known && node->kind == FETCH_ATTRIBUTE) {
            known = fetch_attribute(parent, node->name, &value, &owned, &stable);
        } else if (known) {
            known = fetch_node(node, parent, &scope, &value, &owned);
        }
        value = known ? value : missing;
        PyTuple_SET_ITEM(found, i, known && owned ? value : Py_NewRef(value));
    }
    return found;
}

/* time(scope, count) -> seconds per check, for benchmarks */
static PyObject *
program_time(PyObject *self, PyObject *args)
{
    PyObject *object;
    long count;
    Scope scope;
    if (!PyArg_ParseTuple(args, "Ol", &object, &count) || scope_of(object, &scope) < 0) {
        return NULL;
    }
    struct timespec start, end;
    long held = 0;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (long i = 0; i < count; i++) {
        held += run_program((GuardProgram *)self, &scope, NULL);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds =
        (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    return Py_BuildValue("(dl)", seconds / (double)count, held);
}

static PyMethodDef program_methods[] = {
    {"check", program_check, METH_O, "check(frame_view or dict of locals) -> bool"},
    {"failure", program_failure, METH_O,
     "failure(scope) -> None or (guard index, value was found, value)"},
    {"values", program_values, METH_VARARGS, "values(scope, missing) -> tuple, node by node"},
    {"time", program_time, METH_VARARGS, "time(scope, count) -> (seconds per check, times held)"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef program_members[] = {
    {"guards", T_OBJECT, offsetof(GuardProgram, guards), READONLY, NULL},
    {"spec", T_OBJECT, offsetof(GuardProgram, spec), READONLY, "(nodes, relations)"},
    {"node_count", T_INT, offsetof(GuardProgram, node_count), READONLY, NULL},
    {"check_count", T_INT, offsetof(GuardProgram, check_count), READONLY, NULL},
    {NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_doc, "GuardProgram(nodes, relations=(), symbol_count=0, guards=None)"},
    {Py_tp_new, program_new},
    {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_methods, program_methods},
    {Py_tp_members, program_members},
    {0, NULL},
};

static PyType_Spec program_spec = {
    "bytecap._evalframe.GuardProgram", sizeof(GuardProgram), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, program_slots,
};

int
guard_program_init(PyObject *module)
{
    guard_program_type = (PyTypeObject *)PyType_FromSpec(&program_spec);
    if (guard_program_type == NULL || PyModule_AddType(module, guard_program_type) < 0) {
        return -1;
    }
    return torch_symbols_init(module) < 0 || torch_state_init(module) < 0 ||
                   tensor_init(module) < 0
               ? -1
               : 0;
}
