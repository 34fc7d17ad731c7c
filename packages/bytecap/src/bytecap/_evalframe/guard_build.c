/* Guard programs from Python data: tuples of nodes and checks. */
#include "guards.h"

#define CHECK_NAME(kind, name, holds) name,
static const char *const check_names[] = {CHECK_ROWS(CHECK_NAME)};

int
read_words(PyObject *tuple, int64_t *words, Py_ssize_t count)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        words[i] = (int64_t)PyLong_AsUnsignedLongLongMask(PyTuple_GET_ITEM(tuple, i));
    }
    return PyErr_Occurred() == NULL;
}

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

static int
are_in(const int64_t *words, int64_t count, int64_t least, int64_t most)
{
    int64_t i = 0;
    while (i < count && words[i] >= least && words[i] <= most) {
        i++;
    }
    return i == count;
}

static int
is_sound_check(const GuardProgram *self, const Check *check, int node)
{
    const int64_t *words = check->as.words;
    switch (check->kind) {
    case CHECK_LENGTH:
        return check->number >= 0;
    case CHECK_SAME:
    case CHECK_NOT_SAME:
        return check->count == 1 && are_in(words, 1, 0, node - 1);
    case CHECK_SYMBOL:
        return check->number >= 0 && check->number < self->symbol_count;
    case CHECK_HAS_ATTRIBUTE:
    case CHECK_LACKS_ATTRIBUTE:
        return PyUnicode_Check(check->argument);
    case CHECK_KEYS:
        return PyTuple_Check(check->argument);
    case CHECK_TENSOR: {
        int64_t head = sizeof(TensorSpec) / sizeof *words, dims = check->count - head;
        return dims >= 0 && dims <= 2 * TENSOR_MAX_RANK && dims == 2 * check->as.tensor->rank &&
               PyType_Check(check->argument) && are_in(words + head, dims, -self->symbol_count, INT64_MAX);
    }
    case CHECK_STATE:
        return check->count == STATE_WORDS;
    case CHECK_DISTINCT: /* the node itself is among them */
        return check->number >= 0 && check->number <= check->count && are_in(words, check->count, 0, node);
    case CHECK_RELATION:
        return relation_is_sound(check, self->symbol_count);
    case CHECK_WEAK_IDENTITY:
        return PyWeakref_Check(check->argument);
    case CHECK_FUNCTION:
        return is_function_state(check->argument);
    default:
        return 1;
    }
}

/* (check, (object, number, words), guard) */
static int
parse_check(GuardProgram *self, PyObject *item, Check *check, int node)
{
    PyObject *kind, *words;
    if (!PyTuple_Check(item) || !PyArg_ParseTuple(item, "O(OnO!)i", &kind, &check->argument, &check->number,
                                                  &PyTuple_Type, &words, &check->guard)) {
        return -1;
    }
    int code = guard_kind_of(kind, check_names, CHECK_KINDS);
    check->kind = (CheckKind)code;
    check->count = (int)PyTuple_GET_SIZE(words);
    check->size = 4; /* room for a memo, too */
    while (check->size < 2 * (size_t)check->count) {
        check->size *= 2;
    }
    check->as.words = PyMem_Calloc(2 * (size_t)check->count + check->size, sizeof(int64_t));
    if (check->as.words == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    check->found = (PyObject **)(check->as.words + check->count);
    return code >= 0 && read_words(words, check->as.words, check->count) && is_sound_check(self, check, node) ? 0 : -1;
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
        PyMem_Free(self->checks[i].as.words);
    }
    replay_free(self->replay);
    PyMem_Free(self->nodes);
    PyMem_Free(self->checks);
    PyMem_Free(self->inputs);
    self->replay = NULL;
    self->inputs = NULL;
    self->nodes = NULL;
    self->checks = NULL;
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
guard_program_build(GuardProgram *self, PyObject *nodes, PyObject *inputs)
{
    self->input_count = (int)PyTuple_GET_SIZE(inputs);
    self->node_count = (int)PyTuple_GET_SIZE(nodes);
    self->check_count = count_checks(nodes);
    self->nodes = PyMem_Calloc((size_t)self->node_count + 1, sizeof(Node));
    self->checks = PyMem_Calloc((size_t)self->check_count + 1, sizeof(Check));
    self->inputs = PyMem_Calloc((size_t)self->input_count + 1, sizeof(int));
    if (self->inputs == NULL || self->nodes == NULL || self->checks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int next_check = 0, failed = 0;
    for (int i = 0; !failed && i < self->node_count; i++) {
        failed = parse_node(self, PyTuple_GET_ITEM(nodes, i), i, &next_check) < 0;
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
