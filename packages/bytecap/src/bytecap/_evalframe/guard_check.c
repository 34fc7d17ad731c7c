/* Conditions on one value. None of them runs user code or leaves an error set. */
#include "guards.h"

/* ---- literals -------------------------------------------------------------------------- */

static int
doubles_equal(double a, double b) /* nan is nan, 0.0 is not -0.0 */
{
    return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

static int literals_equal(PyObject *a, PyObject *b);

static int
dicts_equal(PyObject *a, PyObject *b)
{
    Py_ssize_t at_a = 0, at_b = 0;
    PyObject *key_a, *key_b, *value_a, *value_b;
    if (PyDict_GET_SIZE(a) != PyDict_GET_SIZE(b)) {
        return 0;
    }
    while (PyDict_Next(a, &at_a, &key_a, &value_a) && PyDict_Next(b, &at_b, &key_b, &value_b)) {
        if (!literals_equal(key_a, key_b) || !literals_equal(value_a, value_b)) {
            return 0;
        }
    }
    return 1;
}

static int
native_equal(PyObject *a, PyObject *b) /* both of the same exact type, written in C */
{
    int equal = PyObject_RichCompareBool(a, b, Py_EQ);
    if (equal < 0) {
        PyErr_Clear();
    }
    return equal == 1;
}

/* Equal and of the same exact types all the way down. */
static int
literals_equal(PyObject *a, PyObject *b)
{
    PyTypeObject *type = Py_TYPE(a);
    if (type != Py_TYPE(b)) {
        return 0;
    }
    if (type == &PyFloat_Type) {
        return doubles_equal(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    }
    if (a == b) {
        return 1;
    }
    if (type == &PyComplex_Type) {
        Py_complex x = ((PyComplexObject *)a)->cval, y = ((PyComplexObject *)b)->cval;
        return doubles_equal(x.real, y.real) && doubles_equal(x.imag, y.imag);
    }
    if (PyTuple_Check(a) || type == &PyList_Type) {
        int is_tuple = PyTuple_Check(a);
        if (Py_SIZE(a) != Py_SIZE(b)) {
            return 0;
        }
        for (Py_ssize_t i = 0; i < Py_SIZE(a); i++) {
            if (!literals_equal(is_tuple ? PyTuple_GET_ITEM(a, i) : PyList_GET_ITEM(a, i),
                                is_tuple ? PyTuple_GET_ITEM(b, i) : PyList_GET_ITEM(b, i))) {
                return 0;
            }
        }
        return 1;
    }
    if (type == &PyDict_Type) {
        return dicts_equal(a, b);
    }
    if (type == &PySlice_Type) {
        PySliceObject *x = (PySliceObject *)a, *y = (PySliceObject *)b;
        return literals_equal(x->start, y->start) && literals_equal(x->stop, y->stop) &&
               literals_equal(x->step, y->step);
    }
    if (type == &PyBool_Type || a == Py_None) {
        return 0; /* singletons that are not the same object */
    }
    return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) ? 0 : native_equal(a, b);
}

/* ---- containers ------------------------------------------------------------------------ */

static Py_ssize_t
native_length(PyObject *value)
{
    if (PyTuple_Check(value) || PyList_Check(value)) {
        return Py_SIZE(value);
    }
    if (PyDict_Check(value)) {
        return PyDict_GET_SIZE(value);
    }
    if (PyAnySet_Check(value)) {
        return PySet_GET_SIZE(value);
    }
    if ((Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !guard_is_deque(value)) {
        return -1; /* its __len__ may be Python code */
    }
    Py_ssize_t length = PyObject_Size(value);
    if (length < 0) {
        PyErr_Clear();
    }
    return length;
}

/* What an iterator of C gives, in its order: an OrderedDict has one of its own, equal sets may have different ones. */
static int
iterates_over(PyObject *iterator, PyObject *items)
{
    int same = iterator != NULL;
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(items); i++) {
        PyObject *item = PyIter_Next(iterator);
        same = item != NULL && literals_equal(item, PyTuple_GET_ITEM(items, i));
        Py_XDECREF(item);
    }
    Py_XDECREF(iterator);
    PyErr_Clear();
    return same;
}

static int
keys_are(PyObject *dict, PyObject *keys, Memo *memo)
{
    if (PyAnySet_Check(dict)) {
        return PySet_GET_SIZE(dict) == PyTuple_GET_SIZE(keys) && iterates_over(PySet_Type.tp_iter(dict), keys);
    }
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(keys)) {
        return 0;
    }
    if (PyTuple_GET_SIZE(keys) == 0) {
        return 1;
    }
    if (PyODict_Check(dict)) { /* move_to_end leaves the dict's own order and tag alone */
        return iterates_over(PyODict_Type.tp_iter(dict), keys);
    }
    uint64_t tag = dict_tag(dict);
    if (memo->value != NULL && memo->dict == dict && tag != 0 && memo->tag == tag) {
        return 1;
    }
    memo->value = NULL;
    Py_ssize_t position = 0;
    PyObject *key, *item;
    for (Py_ssize_t i = 0; PyDict_Next(dict, &position, &key, &item); i++) {
        if (!literals_equal(key, PyTuple_GET_ITEM(keys, i))) {
            return 0;
        }
    }
    memo->value = dict;
    memo->dict = dict;
    memo->tag = tag;
    return 1;
}

static int
has_key(PyObject *container, PyObject *key)
{
    int found = -1;
    if (PyDict_Check(container)) {
        found = PyDict_Contains(container, key);
    } else if (PyAnySet_Check(container)) {
        found = PySet_Contains(container, key);
    }
    if (found < 0) {
        PyErr_Clear();
    }
    return found;
}

/* 1: has it; 0: has not; -1: only user code could tell. */
static int
has_attribute(Check *check, PyObject *base)
{
    PyObject *value;
    int owned = 0, stable;
    if (fetch_attribute(base, check->argument, &value, &owned, &stable)) {
        if (owned) {
            Py_DECREF(value);
        }
        return 1;
    }
    return fetch_may_hide(base, check->argument) ? -1 : 0;
}

/* ---- identity -------------------------------------------------------------------------- */

/* Is `value` what the weak reference refers to? A dead one is nothing's. */
static int
is_referent(PyObject *value, PyObject *reference)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *referent;
    int found = PyWeakref_GetRef(reference, &referent);
    Py_XDECREF(referent);
    return found == 1 && referent == value; /* compared, not looked into */
#else
    return PyWeakref_GET_OBJECT(reference) == value;
#endif
}

static int
are_distinct(const Check *check)
{
    PyObject **table = check->found + check->count;
    size_t mask = check->size - 1;
    memset(table, 0, check->size * sizeof(PyObject *));
    for (int i = 0; i < check->count; i++) {
        PyObject *value = check->found[i];
        size_t at = ((uintptr_t)value >> 4) & mask;
        for (; table[at] != NULL; at = (at + 1) & mask) {
            if (table[at] == value) {
                return 0;
            }
        }
        if (i < check->number) {
            table[at] = value;
        }
    }
    return 1;
}

/* ---- functions ------------------------------------------------------------------------- */

/* `expected` is (weak reference to the function, code, defaults or None, keyword defaults or None, a copy of these or
 * None): the very function, with the code and the very default values that were inlined. */
static int
is_same_function(PyObject *value, PyObject *expected)
{
    if (!PyFunction_Check(value) || !is_referent(value, PyTuple_GET_ITEM(expected, 0))) {
        return 0;
    }
    PyFunctionObject *function = (PyFunctionObject *)value;
    PyObject *defaults = function->func_defaults, *keywords = function->func_kwdefaults;
    if (function->func_code != PyTuple_GET_ITEM(expected, 1) ||
        (defaults != NULL ? defaults : Py_None) != PyTuple_GET_ITEM(expected, 2) ||
        (keywords != NULL ? keywords : Py_None) != PyTuple_GET_ITEM(expected, 3)) {
        return 0;
    }
    if (keywords == NULL || !PyDict_Check(keywords)) {
        return keywords == NULL;
    }
    PyObject *copy = PyTuple_GET_ITEM(expected, 4), *key_a, *key_b, *a, *b;
    Py_ssize_t at_a = 0, at_b = 0;
    if (PyDict_GET_SIZE(keywords) != PyDict_GET_SIZE(copy)) {
        return 0;
    }
    while (PyDict_Next(keywords, &at_a, &key_a, &a) && PyDict_Next(copy, &at_b, &key_b, &b)) {
        if (key_a != key_b || a != b) {
            return 0;
        }
    }
    return 1;
}

/* ---- symbols --------------------------------------------------------------------------- */

static int
bind_symbol(Symbols *symbols, Py_ssize_t index, PyObject *value)
{
    if (!PyLong_CheckExact(value)) {
        return 0;
    }
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) {
        return 0;
    }
    if (symbols->bound[index]) {
        return symbols->value[index] == number;
    }
    symbols->bound[index] = 1;
    symbols->value[index] = number;
    return 1;
}

int
check_holds(Check *check, PyObject *value, Symbols *symbols)
{
#define CHECK_CASE(kind, name, holds) \
    case CHECK_##kind: \
        return holds;

    switch (check->kind) {
        CHECK_ROWS(CHECK_CASE)
    default:
        return 0;
    }
}
