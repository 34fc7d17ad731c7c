/* Guard programs from Python data: tuples of nodes, checks and relations. */
#include "guards.h"

TensorSpec *tensor_spec_parse(PyObject *tuple, Py_ssize_t symbol_count);

typedef enum {
    ARGUMENT_OBJECT, ARGUMENT_NUMBER, ARGUMENT_NODE, ARGUMENT_SYMBOL, ARGUMENT_TEXT, ARGUMENT_KEYS, ARGUMENT_NODES,
    ARGUMENT_TENSOR_SPEC, ARGUMENT_STATE, ARGUMENT_WEAK_REFERENCE, ARGUMENT_FUNCTION_STATE
} ArgumentKind;

#define CHECK_NAME(kind, name, argument, holds) name,
static const char *const check_names[] = {CHECK_ROWS(CHECK_NAME)};
#define CHECK_ARGUMENT(kind, name, argument, holds) ARGUMENT_##argument,
static const ArgumentKind check_arguments[] = {CHECK_ROWS(CHECK_ARGUMENT)};

int
guard_kind_of(PyObject *name, const char *const *names, int count)
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
is_function_state(PyObject *tuple)
{
    return PyTuple_Check(tuple) && PyTuple_GET_SIZE(tuple) == 5 &&
           PyWeakref_Check(PyTuple_GET_ITEM(tuple, 0)) &&
           (PyTuple_GET_ITEM(tuple, 3) == Py_None || PyDict_Check(PyTuple_GET_ITEM(tuple, 4)));
}

/* ((node, ...), how many of them are apart) */
static Distinct *
parse_distinct(PyObject *argument, int node)
{
    PyObject *nodes;
    int apart;
    if (!PyTuple_Check(argument) || !PyArg_ParseTuple(argument, "O!i", &PyTuple_Type, &nodes, &apart)) {
        return NULL;
    }
    size_t count = (size_t)PyTuple_GET_SIZE(nodes), size = 4;
    while (size < 2 * count) {
        size *= 2;
    }
    size_t head = (sizeof(Distinct) + count * sizeof(int) + 15) / 16 * 16;
    Distinct *made = PyMem_Malloc(head + (count + size) * sizeof(PyObject *));
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    made->count = (int)count;
    made->apart = apart;
    made->size = size;
    made->found = (PyObject **)((char *)made + head);
    made->table = made->found + count;
    int fits = apart >= 0 && apart <= made->count;
    for (size_t i = 0; fits && i < count; i++) {
        long place = PyLong_AsLong(PyTuple_GET_ITEM(nodes, (Py_ssize_t)i));
        fits = place >= 0 && place <= node;
        made->nodes[i] = (int)place;
    }
    if (!fits) {
        PyMem_Free(made);
        return NULL;
    }
    return made;
}

static int
parse_check(GuardProgram *self, PyObject *item, Check *check, int node)
{
    PyObject *kind;
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "OOi", &kind, &check->argument, &check->guard)) {
        return -1;
    }
    int code = guard_kind_of(kind, check_names, CHECK_KINDS);
    if (code < 0) {
        return -1;
    }
    check->as.number = 0;
    check->kind = (CheckKind)code;
    Py_ssize_t bound = PY_SSIZE_T_MAX;
    switch (check_arguments[code]) {
    case ARGUMENT_OBJECT:
        return 0;
    case ARGUMENT_NUMBER:
        break;
    case ARGUMENT_NODE:
        bound = node;
        break;
    case ARGUMENT_SYMBOL:
        bound = self->symbol_count;
        break;
    case ARGUMENT_TEXT:
        return PyUnicode_Check(check->argument) ? 0 : -1;
    case ARGUMENT_KEYS:
        check->as.memo = PyMem_Calloc(1, sizeof(Memo));
        return check->as.memo != NULL && PyTuple_Check(check->argument) ? 0 : -1;
    case ARGUMENT_NODES:
        check->as.distinct = parse_distinct(check->argument, node);
        return check->as.distinct == NULL ? -1 : 0;
    case ARGUMENT_TENSOR_SPEC:
        check->as.tensor = tensor_spec_parse(check->argument, self->symbol_count);
        return check->as.tensor == NULL ? -1 : 0;
    case ARGUMENT_STATE:
        check->as.state = PyMem_Calloc(1, sizeof(TorchState));
        return check->as.state == NULL ? -1 : torch_state_parse(check->argument, check->as.state);
    case ARGUMENT_WEAK_REFERENCE:
        return PyWeakref_Check(check->argument) ? 0 : -1;
    case ARGUMENT_FUNCTION_STATE:
        return is_function_state(check->argument) ? 0 : -1;
    }
    check->as.number = PyLong_AsSsize_t(check->argument);
    if (check->as.number == -1 && PyErr_Occurred()) {
        return -1;
    }
    return check->as.number >= 0 && check->as.number < bound ? 0 : -1;
}

static int
is_sound(const Node *node)
{
    switch (node->kind) {
    case FETCH_GLOBAL:
    case FETCH_BUILTIN:
        return PyUnicode_Check(node->name) && (node->object == Py_None || PyDict_Check(node->object));
    case FETCH_ATTRIBUTE:
        return PyUnicode_Check(node->name) && node->parent >= 0;
    case FETCH_LOCAL:
    case FETCH_CELL:
        return PyUnicode_Check(node->name);
    case FETCH_CALL:
        return PyTuple_Check(node->name) &&
               (PyCFunction_Check(node->object) || node->object == (PyObject *)&_PyWeakref_RefType ||
                Py_TYPE(node->object) == &PyMethodDescr_Type || Py_TYPE(node->object) == &PyWrapperDescr_Type);
    case FETCH_OBJECT:
    case FETCH_FRAME:
        return 1;
    default:
        return node->parent >= 0;
    }
}

/* (parent, fetch, (name, object, index), checks, guard) */
static int
parse_node(GuardProgram *self, PyObject *item, int index, int *next_check)
{
    Node *node = &self->nodes[index];
    PyObject *kind, *checks;
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "iO(OOn)O!i", &node->parent, &kind, &node->name, &node->object, &node->index,
                          &PyTuple_Type, &checks, &node->guard)) {
        return -1;
    }
    int code = guard_kind_of(kind, fetch_names, FETCH_KINDS);
    node->kind = (FetchKind)code;
    if (code < 0 || node->parent < -1 || node->parent >= index || !is_sound(node)) {
        return -1;
    }
    node->first_check = *next_check;
    node->check_count = (int)PyTuple_GET_SIZE(checks);
    for (int i = 0; i < node->check_count; i++) {
        /* same and not_same may name this node's predecessors only, distinct the node as well */
        if (parse_check(self, PyTuple_GET_ITEM(checks, i), &self->checks[(*next_check)++],
                        index) < 0) {
            return -1;
        }
    }
    return 0;
}

void
guard_program_free_parts(GuardProgram *self)
{
    for (int i = 0; self->checks != NULL && i < self->check_count; i++) {
        CheckKind kind = self->checks[i].kind;
        if (kind == CHECK_TENSOR || kind == CHECK_STATE || kind == CHECK_KEYS || kind == CHECK_DISTINCT) {
            PyMem_Free(self->checks[i].as.memo); /* the union's pointers are freed alike */
        }
    }
    for (int i = 0; self->relations != NULL && i < self->relation_count; i++) {
        PyMem_Free(self->relations[i].ops);
    }
    replay_free(self->replay);
    PyMem_Free(self->nodes);
    PyMem_Free(self->checks);
    PyMem_Free(self->relations);
    PyMem_Free(self->inputs);
    self->replay = NULL;
    self->inputs = NULL;
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

int
guard_program_build(GuardProgram *self, PyObject *nodes, PyObject *relations, PyObject *inputs)
{
    self->input_count = (int)PyTuple_GET_SIZE(inputs);
    self->node_count = (int)PyTuple_GET_SIZE(nodes);
    self->relation_count = (int)PyTuple_GET_SIZE(relations);
    self->check_count = count_checks(nodes);
    self->nodes = PyMem_Calloc((size_t)self->node_count + 1, sizeof(Node));
    self->checks = PyMem_Calloc((size_t)self->check_count + 1, sizeof(Check));
    self->relations = PyMem_Calloc((size_t)self->relation_count + 1, sizeof(Relation));
    self->inputs = PyMem_Calloc((size_t)self->input_count + 1, sizeof(int));
    if (self->inputs == NULL || self->nodes == NULL || self->checks == NULL || self->relations == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int next_check = 0, failed = 0;
    for (int i = 0; !failed && i < self->node_count; i++) {
        failed = parse_node(self, PyTuple_GET_ITEM(nodes, i), i, &next_check) < 0;
    }
    for (int i = 0; !failed && i < self->relation_count; i++) {
        failed = relation_parse(PyTuple_GET_ITEM(relations, i), self->symbol_count,
                                &self->relations[i]) < 0;
    }
    for (int i = 0; !failed && i < self->input_count; i++) {
        long node = PyLong_AsLong(PyTuple_GET_ITEM(inputs, i));
        failed = node < 0 || node >= self->node_count;
        self->inputs[i] = (int)node;
    }
    if (failed && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "malformed guard program");
    }
    return failed ? -1 : 0;
}
