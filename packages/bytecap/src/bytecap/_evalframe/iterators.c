/* What iterators of CPython's own will give, told without asking them.
 *
 *   iterator ::= leaf | enumerate(iterator) | zip(iterator*)       zip without strict=
 *   leaf     ::= of a list, tuple or range | of the keys, values or items of a dict
 *
 * An answer is only given where the iterators that would be asked are different ones. Looking runs no user code.
 */
#include "evalframe.h"

#define MOST_LEAVES 16
#define MOST_LEVELS 8

typedef enum { AHEAD_UNKNOWN = -1, AHEAD_END = 0, AHEAD_ITEM = 1 } Ahead;

static Ahead look_ahead(PyObject *iterator, Py_ssize_t n, PyObject **item);

static Ahead
give(PyObject *made, PyObject **item) /* a new reference; an error is no answer */
{
    if (made == NULL) {
        PyErr_Clear();
        return AHEAD_UNKNOWN;
    }
    *item = made;
    return AHEAD_ITEM;
}

static Ahead
dict_ahead(DictIterator *self, Py_ssize_t n, PyTypeObject *type, PyObject **item)
{
    PyObject *key, *value;
    if (self->di_dict == NULL) {
        return AHEAD_END;
    }
    if (self->di_used != self->di_dict->ma_used) { /* it will raise */
        return AHEAD_UNKNOWN;
    }
    Py_ssize_t place = self->di_pos;
    for (Py_ssize_t i = 0; i <= n; i++) {
        if (!PyDict_Next((PyObject *)self->di_dict, &place, &key, &value)) {
            return AHEAD_END;
        }
        if (i >= self->len) { /* keys were replaced: it will raise */
            return AHEAD_UNKNOWN;
        }
    }
    return type == &PyDictIterKey_Type     ? give(Py_NewRef(key), item)
           : type == &PyDictIterValue_Type ? give(Py_NewRef(value), item)
                                           : give(PyTuple_Pack(2, key, value), item);
}

static Ahead
enumerate_ahead(Enumerate *self, Py_ssize_t n, PyObject **item)
{
    if (self->en_index > PY_SSIZE_T_MAX - 1 - n) {
        return AHEAD_UNKNOWN;
    }
    PyObject *inner = NULL;
    Ahead ahead = look_ahead(self->en_sit, n, &inner);
    if (ahead != AHEAD_ITEM) {
        return ahead;
    }
    PyObject *index = PyLong_FromSsize_t(self->en_index + n);
    PyObject *pair = index == NULL ? NULL : PyTuple_Pack(2, index, inner);
    Py_XDECREF(index);
    Py_DECREF(inner);
    return give(pair, item);
}

static Ahead
zip_ahead(Zip *self, Py_ssize_t n, PyObject **item)
{
    if (self->tuplesize == 0) {
        return AHEAD_END;
    }
    PyObject *tuple = PyTuple_New(self->tuplesize);
    Ahead ahead = tuple == NULL ? AHEAD_UNKNOWN : AHEAD_ITEM;
    for (Py_ssize_t i = 0; i < self->tuplesize && ahead == AHEAD_ITEM; i++) {
        PyObject *part = NULL;
        ahead = look_ahead(PyTuple_GET_ITEM(self->ittuple, i), n, &part);
        if (ahead == AHEAD_ITEM) {
            PyTuple_SET_ITEM(tuple, i, part);
        }
    }
    if (ahead == AHEAD_ITEM) {
        return give(tuple, item);
    }
    PyErr_Clear();
    Py_XDECREF(tuple);
    return ahead;
}

/* The item that the iterator gives after `n` others (a new reference), of a known kind of iterator. */
static Ahead
look_ahead(PyObject *iterator, Py_ssize_t n, PyObject **item)
{
    PyTypeObject *type = Py_TYPE(iterator);
    if (type == &PyListIter_Type || type == &PyTupleIter_Type) {
        SequenceIterator *self = (SequenceIterator *)iterator;
        if (self->it_seq == NULL || n >= Py_SIZE(self->it_seq) - self->it_index) {
            return AHEAD_END;
        }
        Py_ssize_t at = self->it_index + n;
        return give(Py_NewRef(type == &PyListIter_Type ? PyList_GET_ITEM(self->it_seq, at)
                                                       : PyTuple_GET_ITEM(self->it_seq, at)),
                    item);
    }
    if (type == &PyRangeIter_Type) {
        long value;
        return range_iterator_ahead(iterator, n, &value) ? give(PyLong_FromLong(value), item) : AHEAD_END;
    }
    if (is_dict_iterator(iterator)) {
        return dict_ahead((DictIterator *)iterator, n, type, item);
    }
    return type == &PyEnum_Type ? enumerate_ahead((Enumerate *)iterator, n, item)
                                : zip_ahead((Zip *)iterator, n, item);
}

/* Adds the iterators that hold no others; 0 where one is of another kind, or there twice. */
static int
add_leaves(PyObject *iterator, PyObject **leaves, int *count, int level)
{
    PyTypeObject *type = Py_TYPE(iterator);
    if (level > MOST_LEVELS) {
        return 0;
    }
    if (type == &PyEnum_Type) {
        return add_leaves(((Enumerate *)iterator)->en_sit, leaves, count, level + 1);
    }
    if (type == &PyZip_Type) {
        Zip *self = (Zip *)iterator;
        int known = !self->strict;
        for (Py_ssize_t i = 0; i < self->tuplesize && known; i++) {
            known = add_leaves(PyTuple_GET_ITEM(self->ittuple, i), leaves, count, level + 1);
        }
        return known;
    }
    if (*count == MOST_LEAVES || !(type == &PyListIter_Type || type == &PyTupleIter_Type ||
                                   type == &PyRangeIter_Type || is_dict_iterator(iterator))) {
        return 0;
    }
    for (int i = 0; i < *count; i++) {
        if (leaves[i] == iterator) {
            return 0;
        }
    }
    leaves[(*count)++] = iterator;
    return 1;
}

static Ahead
ahead_of(PyObject *const *args, Py_ssize_t given, PyObject **item)
{
    PyObject *leaves[MOST_LEAVES];
    int count = 0;
    Py_ssize_t n = given == 2 ? PyLong_AsSsize_t(args[1]) : -1;
    if (n < 0) {
        PyErr_Clear();
        return AHEAD_UNKNOWN;
    }
    return add_leaves(args[0], leaves, &count, 0) ? look_ahead(args[0], n, item) : AHEAD_UNKNOWN;
}

static PyObject *
py_upcoming(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    PyObject *item = NULL;
    if (ahead_of(args, given, &item) != AHEAD_ITEM) {
        PyErr_SetString(PyExc_LookupError, "no item is known there");
    }
    return item;
}

static PyObject *
py_has_upcoming(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    PyObject *item = NULL;
    Ahead ahead = ahead_of(args, given, &item);
    Py_XDECREF(item);
    if (ahead == AHEAD_UNKNOWN) {
        PyErr_SetString(PyExc_LookupError, "nothing is known of the iterator");
        return NULL;
    }
    return PyBool_FromLong(ahead);
}

static PyObject *
py_iterated(PyObject *Py_UNUSED(module), PyObject *iterator)
{
    PyTypeObject *type = Py_TYPE(iterator);
    PyObject *inner = NULL;
    if (type == &PyZip_Type) {
        return Py_NewRef(((Zip *)iterator)->ittuple);
    }
    if (type == &PyEnum_Type) {
        inner = ((Enumerate *)iterator)->en_sit;
    } else if (type == &PyListIter_Type) {
        inner = ((SequenceIterator *)iterator)->it_seq;
    } else if (is_dict_iterator(iterator)) {
        inner = (PyObject *)((DictIterator *)iterator)->di_dict;
    }
    return inner == NULL ? PyTuple_New(0) : PyTuple_Pack(1, inner);
}

static PyMethodDef iterator_methods[] = {
    {"upcoming", (PyCFunction)(void (*)(void))py_upcoming, METH_FASTCALL,
     "upcoming(iterator, n, /)\n\nThe item that it gives after `n` others. LookupError where none is known."},
    {"has_upcoming", (PyCFunction)(void (*)(void))py_has_upcoming, METH_FASTCALL,
     "has_upcoming(iterator, n, /)\n\nWhether it gives more than `n` items. LookupError where that is not known."},
    {"iterated", py_iterated, METH_O,
     "iterated(iterator, /)\n\nThe list, dict or iterators that its items come from and that may change."},
    {NULL, NULL, 0, NULL},
};

int
iterators_init(PyObject *module)
{
    if (!iterator_layouts_fit()) { /* another CPython than those this was read against */
        PyErr_SetString(PyExc_ImportError, "bytecap: iterators have another layout in this CPython");
        return -1;
    }
    return PyModule_AddFunctions(module, iterator_methods);
}
