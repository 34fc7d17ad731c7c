/* Reading the value of a source, without running user code. */
#include "guards.h"

const char *const fetch_names[FETCH_KINDS] = {
    "local", "global", "builtin", "cell", "attribute", "item",
    "dict_key", "dict_value", "type_of", "call", "object", "frame",
};

static PyObject *module_getattr; /* torch.nn.Module.__getattr__, or NULL without torch */

void
fetch_set_module_type(PyObject *getattr_function)
{
    Py_XSETREF(module_getattr, Py_NewRef(getattr_function));
}

static PyObject *
interned(PyObject **slot, const char *text)
{
    if (*slot == NULL) {
        *slot = PyUnicode_InternFromString(text);
    }
    return *slot;
}
#define INTERNED(text) ({ static PyObject *slot_; interned(&slot_, text); })

/* ---- dictionaries ---------------------------------------------------------------------- */

/* A borrowed value of a real dict (also of a subclass: its own __getitem__ is not asked). */
static PyObject *
dict_get(PyObject *dict, PyObject *key)
{
    PyObject *value = PyDict_GetItemWithError(dict, key);
    if (value == NULL && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return value;
}

PyObject *
fetch_dict_item(PyObject *dict, PyObject *key)
{
    return dict_get(dict, key);
}

static PyObject *
dict_get_memo(PyObject *dict, PyObject *key, Memo *memo)
{
    uint64_t tag = dict_tag(dict);
    if (memo->value != NULL && memo->dict == dict && tag != 0 && memo->tag == tag) {
        return memo->value;
    }
    PyObject *value = dict_get(dict, key);
    memo->value = value;
    memo->dict = dict;
    memo->tag = tag;
    return value;
}

/* ---- attributes ------------------------------------------------------------------------ */

/* Descriptors whose __get__ is C code that only wraps or reads a slot. */
static int
is_native_descriptor(PyObject *descriptor)
{
    PyTypeObject *type = Py_TYPE(descriptor);
    return type == &PyFunction_Type || type == &PyGetSetDescr_Type ||
           type == &PyMemberDescr_Type || type == &PyMethodDescr_Type ||
           type == &PyWrapperDescr_Type || type == &PyClassMethodDescr_Type ||
           type == &PyClassMethod_Type || type == &PyStaticMethod_Type ||
           (type != &PyProperty_Type && !(type->tp_flags & Py_TPFLAGS_HEAPTYPE));
}

static int
take_new(PyObject *result, PyObject **value, int *owned)
{
    if (result == NULL) {
        PyErr_Clear();
        return 0;
    }
    *value = result;
    *owned = 1;
    return 1;
}

static int
take_borrowed(PyObject *result, PyObject **value)
{
    *value = result;
    return result != NULL;
}

/* An attribute of a class, as type.__getattribute__ finds it; functions, properties and descriptors
 * written in Python as they lie in the class. */
static int
class_attribute(PyTypeObject *base, PyObject *name, PyObject **value, int *owned)
{
    PyTypeObject *metatype = Py_TYPE(base);
    PyObject *of_metatype = _PyType_Lookup(metatype, name);
    if (of_metatype != NULL && Py_TYPE(of_metatype)->tp_descr_set != NULL) {
        descrgetfunc get = Py_TYPE(of_metatype)->tp_descr_get;
        if (get == NULL || !is_native_descriptor(of_metatype)) {
            return 0;
        }
        return take_new(get(of_metatype, (PyObject *)base, (PyObject *)metatype), value, owned);
    }
    PyObject *found = _PyType_Lookup(base, name);
    if (found != NULL) {
        descrgetfunc get = Py_TYPE(found)->tp_descr_get;
        if (get == NULL || Py_TYPE(found) == &PyProperty_Type ||
            Py_TYPE(found) == &PyFunction_Type) {
            return take_borrowed(found, value);
        }
        if (is_native_descriptor(found)) {
            return take_new(get(found, NULL, (PyObject *)base), value, owned);
        }
        /* Members of an Enum may hide behind a descriptor written in Python. */
        PyObject *members = _PyType_Lookup(base, INTERNED("_member_map_"));
        PyObject *member =
            members != NULL && PyDict_Check(members) ? dict_get(members, name) : NULL;
        return take_borrowed(member != NULL ? member : found, value);
    }
    if (of_metatype != NULL && is_native_descriptor(of_metatype)) {
        descrgetfunc get = Py_TYPE(of_metatype)->tp_descr_get;
        return get == NULL
                   ? take_borrowed(of_metatype, value)
                   : take_new(get(of_metatype, (PyObject *)base, (PyObject *)metatype), value,
                              owned);
    }
    return 0;
}

/* Who answers obj.name: the generic rule of object, some other C code, or Python code. */
typedef enum { ANSWER_GENERIC, ANSWER_NATIVE, ANSWER_PYTHON } Answer;

static Answer
who_answers(PyTypeObject *type)
{
    if (type->tp_getattro == PyObject_GenericGetAttr) {
        return ANSWER_GENERIC;
    }
    PyObject *method = _PyType_Lookup(type, INTERNED("__getattribute__"));
    if (method == NULL || Py_TYPE(method) != &PyWrapperDescr_Type) {
        return ANSWER_PYTHON;
    }
    PyTypeObject *where = PyDescr_TYPE(method);
    if (where == &PyBaseObject_Type || where == &PyModule_Type) {
        return ANSWER_GENERIC;
    }
    return _PyType_Lookup(type, INTERNED("__getattr__")) == NULL ? ANSWER_NATIVE : ANSWER_PYTHON;
}

static PyObject *
registry(PyObject *dict, int index) /* in the order of nn.Module.__getattr__ */
{
    PyObject *names[3] = {
        INTERNED("_parameters"), INTERNED("_buffers"), INTERNED("_modules"),
    };
    PyObject *found = dict_get(dict, names[index]);
    return found != NULL && PyDict_Check(found) ? found : NULL;
}

static PyObject *
module_member(PyObject *dict, PyObject *name)
{
    for (int i = 0; i < 3; i++) {
        PyObject *members = registry(dict, i);
        PyObject *value = members != NULL ? dict_get(members, name) : NULL;
        if (value != NULL) {
            return value;
        }
    }
    return NULL;
}

static int
is_nn_module(PyTypeObject *type)
{
    return module_getattr != NULL &&
           _PyType_Lookup(type, INTERNED("__getattr__")) == module_getattr;
}

static int
generic_attribute(PyObject *base, PyObject *name, PyObject **value, int *owned, int *stable)
{
    PyTypeObject *type = Py_TYPE(base);
    /* The dict itself can be read past a __getattribute__ written in Python (evaluator needs this:
     * transformers' configurations have one). */
    if (name == INTERNED("__dict__") && type->tp_dictoffset != 0) {
        PyObject *whole = instance_dict(base);
        Py_XDECREF(whole); /* the object holds it */
        return take_borrowed(whole, value);
    }
    Answer answer = who_answers(type);
    if (answer == ANSWER_PYTHON) {
        return 0;
    }
    if (answer == ANSWER_NATIVE) {
        return take_new(PyObject_GetAttr(base, name), value, owned);
    }
    PyObject *of_type = _PyType_Lookup(type, name);
    descrgetfunc get = of_type != NULL ? Py_TYPE(of_type)->tp_descr_get : NULL;
    if (get != NULL && Py_TYPE(of_type)->tp_descr_set != NULL) {
        return is_native_descriptor(of_type)
                   ? take_new(get(of_type, base, (PyObject *)type), value, owned)
                   : 0;
    }
    PyObject *dict = instance_dict(base);
    Py_XDECREF(dict); /* the object holds it */
    *stable = 1;
    PyObject *found = dict != NULL ? dict_get(dict, name) : NULL;
    if (found == NULL && dict != NULL && of_type == NULL && is_nn_module(type)) {
        found = module_member(dict, name);
    }
    if (found != NULL) {
        return take_borrowed(found, value);
    }
    if (of_type == NULL) {
        return 0;
    }
    if (get == NULL) {
        return take_borrowed(of_type, value);
    }
    *stable = 0;
    return is_native_descriptor(of_type)
               ? take_new(get(of_type, base, (PyObject *)type), value, owned)
               : 0;
}

__attribute__((noinline)) int /* or every fetch_node would save the registers that it needs */
fetch_attribute(PyObject *base, PyObject *name, PyObject **value, int *owned, int *stable)
{
    *owned = 0;
    *stable = 0;
    if (!PyType_Check(base)) {
        return generic_attribute(base, name, value, owned, stable);
    }
    if (name == INTERNED("__dict__")) { /* the dict itself, not the view of it that the class gives */
        return take_borrowed(class_dict((PyTypeObject *)base), value);
    }
    PyObject *method = _PyType_Lookup(Py_TYPE(base), INTERNED("__getattribute__"));
    if (method == NULL || Py_TYPE(method) != &PyWrapperDescr_Type) {
        return 0;
    }
    if (class_attribute((PyTypeObject *)base, name, value, owned)) {
        return 1; /* a __getattr__ of the metaclass is not asked */
    }
    /* EnumType of 3.11 has a __getattr__ for members; everything else is refused. */
    int asks = _PyType_Lookup(Py_TYPE(base), INTERNED("__getattr__")) != NULL;
    PyObject *members = asks ? _PyType_Lookup((PyTypeObject *)base, INTERNED("_member_map_")) : NULL;
    return members != NULL && PyDict_Check(members)
               ? take_borrowed(dict_get(members, name), value)
               : 0;
}

int
fetch_attribute_dicts(PyObject *base, PyObject **dicts)
{
    PyObject *dict = instance_dict(base);
    Py_XDECREF(dict); /* the object holds it */
    if (dict == NULL) {
        return 0;
    }
    move_attributes_into_dict(dict);
    int count = 0;
    dicts[count++] = dict;
    for (int i = 0; i < 3 && is_nn_module(Py_TYPE(base)); i++) {
        PyObject *members = registry(dict, i);
        if (members != NULL) {
            dicts[count++] = members;
        }
    }
    return count;
}

int
fetch_may_hide(PyObject *base, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(base);
    if (PyType_Check(base)) {
        return who_answers(type) == ANSWER_PYTHON ||
               _PyType_Lookup((PyTypeObject *)base, name) != NULL;
    }
    PyObject *hook = _PyType_Lookup(type, INTERNED("__getattr__"));
    PyObject *of_type = _PyType_Lookup(type, name);
    return who_answers(type) == ANSWER_PYTHON || (hook != NULL && hook != module_getattr) ||
           (of_type != NULL && !is_native_descriptor(of_type));
}

/* ---- items ----------------------------------------------------------------------------- */

/* A collections.deque itself, no subclass: its class is not part of CPython's C API. */
int
guard_is_deque(PyObject *value)
{
    static PyObject *deque = NULL;
    if (deque == NULL) {
        PyObject *module = PyImport_ImportModule("_collections");
        deque = module == NULL ? NULL : PyObject_GetAttrString(module, "deque");
        Py_XDECREF(module);
        if (deque == NULL) {
            PyErr_Clear();
            return 0;
        }
    }
    return (PyObject *)Py_TYPE(value) == deque;
}

static int
fetch_item(Node *node, PyObject *base, PyObject **value, int *owned)
{
    if (PyDict_Check(base)) {
        return take_borrowed(dict_get_memo(base, node->name, &node->memo), value);
    }
    if (PyTuple_Check(base) || PyList_Check(base)) {
        Py_ssize_t size = Py_SIZE(base);
        Py_ssize_t index = node->index < 0 ? node->index + size : node->index;
        if (index < 0 || index >= size) {
            return 0;
        }
        return take_borrowed(PyTuple_Check(base) ? PyTuple_GET_ITEM(base, index)
                                                 : PyList_GET_ITEM(base, index),
                             value);
    }
    if (Py_TYPE(base) == &PyRange_Type || PyUnicode_CheckExact(base) ||
        PyBytes_CheckExact(base) || guard_is_deque(base)) {
        return take_new(PyObject_GetItem(base, node->name), value, owned);
    }
    return 0;
}

/* The index-th item, borrowed. An OrderedDict has an order of its own (move_to_end). */
static int
nth_item(PyObject *dict, Py_ssize_t index, PyObject **key, PyObject **value)
{
    if (!PyODict_Check(dict)) {
        Py_ssize_t i = dict_place_before(dict, index), place = i;
        while (PyDict_Next(dict, &place, key, value)) {
            if (i++ == index) {
                return 1;
            }
        }
        return 0;
    }
    PyObject *iterator = PyODict_Type.tp_iter(dict);
    *key = NULL;
    for (Py_ssize_t i = 0; iterator != NULL && i <= index; i++) {
        Py_XSETREF(*key, PyIter_Next(iterator));
        if (*key == NULL) {
            break;
        }
    }
    PyErr_Clear();
    Py_XDECREF(iterator);
    Py_XDECREF(*key); /* the dict holds it */
    *value = *key == NULL ? NULL : dict_get(dict, *key);
    return *value != NULL;
}

static int
fetch_nth(Node *node, PyObject *base, int want_key, PyObject **value)
{
    if (!PyDict_Check(base)) {
        return 0;
    }
    /* The order of an OrderedDict changes without its tag. */
    uint64_t tag = PyODict_Check(base) ? 0 : dict_tag(base);
    Memo *memo = &node->memo;
    if (memo->value != NULL && memo->dict == base && tag != 0 && memo->tag == tag) {
        return take_borrowed(memo->value, value);
    }
    PyObject *key, *item;
    int found = nth_item(base, node->index, &key, &item);
    memo->value = !found ? NULL : want_key ? key : item;
    memo->dict = base;
    memo->tag = tag;
    return take_borrowed(memo->value, value);
}

/* ---- roots ----------------------------------------------------------------------------- */

static int
fetch_local(const Node *node, const Scope *scope, PyObject **value)
{
    if (scope->slots == NULL) {
        return scope->named_locals != NULL &&
               take_borrowed(dict_get(scope->named_locals, node->name), value);
    }
    if (node->index < 0 || node->index >= scope->slot_count) {
        return 0;
    }
    return take_borrowed(scope->slots[node->index], value);
}

static int
fetch_global(Node *node, const Scope *scope, PyObject **value)
{
    PyObject *dict = node->object != Py_None ? node->object : scope->globals;
    return dict != NULL && PyDict_Check(dict) &&
           take_borrowed(dict_get_memo(dict, node->name, &node->memo), value);
}

/* A builtin is what the name means only while no global hides it. `object`: the globals of the
 * function that was inlined, when it was not the frame's own. */
static int
fetch_builtin(Node *node, const Scope *scope, PyObject **value)
{
    PyObject *globals = node->object != Py_None ? node->object : scope->globals;
    if (globals == NULL || scope->builtins == NULL || !PyDict_Check(scope->builtins)) {
        return 0;
    }
    Memo *memo = &node->memo;
    uint64_t tag = dict_tag(globals);
    if (memo->value == NULL || memo->dict != globals || tag == 0 || memo->tag != tag) {
        if (dict_get(globals, node->name) != NULL) {
            return 0;
        }
        memo->dict = globals;
        memo->tag = tag;
        memo->value = globals; /* any mark: "not hidden" */
    }
    return take_borrowed(dict_get(scope->builtins, node->name), value);
}

static int
cell_content(PyObject *cell, PyObject **value)
{
    return cell != NULL && PyCell_Check(cell) && take_borrowed(PyCell_GET(cell), value);
}

static int
fetch_cell(const Node *node, PyObject *parent, const Scope *scope, PyObject **value)
{
    if (parent == NULL && scope->slots == NULL) {
        return scope->cells != NULL && cell_content(dict_get(scope->cells, node->name), value);
    }
    PyObject *function = parent != NULL ? parent : scope->function;
    if (function != NULL && PyMethod_Check(function)) {
        function = PyMethod_GET_FUNCTION(function);
    }
    if (function == NULL || !PyFunction_Check(function)) {
        return 0;
    }
    PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)function)->func_code;
    PyObject *closure = ((PyFunctionObject *)function)->func_closure;
    for (int i = 0; closure != NULL && i < code->co_nfreevars; i++) {
        PyObject *name = code_freevar_name(code, i);
        if (name == node->name || PyUnicode_Compare(name, node->name) == 0) {
            return cell_content(PyTuple_GET_ITEM(closure, i), value);
        }
    }
    return 0;
}

/* What a C function of torch without side effects returns now. */
static int
fetch_call(const Node *node, PyObject *parent, PyObject **value, int *owned)
{
    Py_ssize_t given = PyTuple_GET_SIZE(node->name), shift = parent != NULL;
    PyObject *arguments = PyTuple_New(given + shift);
    if (arguments == NULL) {
        PyErr_Clear();
        return 0;
    }
    if (parent != NULL) {
        PyTuple_SET_ITEM(arguments, 0, Py_NewRef(parent));
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        PyTuple_SET_ITEM(arguments, i + shift, Py_NewRef(PyTuple_GET_ITEM(node->name, i)));
    }
    PyObject *result = PyObject_Call(node->object, arguments, NULL);
    Py_DECREF(arguments);
    return take_new(result, value, owned);
}

int
fetch_node(Node *node, PyObject *parent, const Scope *scope, PyObject **value, int *owned)
{
    *owned = 0;
    switch (node->kind) {
    case FETCH_LOCAL:
        return fetch_local(node, scope, value);
    case FETCH_GLOBAL:
        return fetch_global(node, scope, value);
    case FETCH_BUILTIN:
        return fetch_builtin(node, scope, value);
    case FETCH_CELL:
        return fetch_cell(node, parent, scope, value);
    case FETCH_ATTRIBUTE:
        return fetch_attribute(parent, node->name, value, owned, &node->is_stable);
    case FETCH_ITEM:
        return fetch_item(node, parent, value, owned);
    case FETCH_DICT_KEY:
        return fetch_nth(node, parent, 1, value);
    case FETCH_DICT_VALUE:
        return fetch_nth(node, parent, 0, value);
    case FETCH_TYPE_OF:
        return take_borrowed((PyObject *)Py_TYPE(parent), value);
    case FETCH_CALL:
        return fetch_call(node, parent, value, owned);
    case FETCH_OBJECT:
        return take_borrowed(node->object, value);
    default: /* FETCH_FRAME: a place for checks that read no value */
        return take_borrowed(Py_None, value);
    }
}
