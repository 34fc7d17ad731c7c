/* Reading a tensor's metadata without torch's headers, in one of two ways:
 *
 *   offsets     fields of c10::TensorImpl at offsets found by search on probe tensors and
 *               verified on all of them (TensorImpl.h: sizes_and_strides_, data_type_,
 *               device_opt_, key_set_)
 *   attributes  tensor.dtype, .shape, .stride(), .device, .requires_grad
 */
#include "guards.h"
#include <malloc.h>

typedef enum { LAYOUT_ATTRIBUTES, LAYOUT_OFFSETS } Layout;
static const char *const layout_names[] = {"attributes", "offsets"};

static Layout layout = LAYOUT_ATTRIBUTES, best_layout = LAYOUT_ATTRIBUTES;

#define INLINE_RANK 5  /* SizesAndStrides keeps up to five dimensions inline */

static struct {
    int handle;  /* at::Tensor in the Python object */
    int sizes;   /* SizesAndStrides in TensorImpl: rank, then sizes[5] strides[5] or a pointer */
    int dtype;   /* uint16_t caffe2 type index, which is the ScalarType */
    int device;  /* int8_t type, int8_t index */
    int key_set; /* uint64_t */
} offsets;

static struct {
    uint8_t (*requires_grad)(const void *impl); /* c10::TensorImpl::requires_grad() const */
    uint8_t (*is_leaf)(const void *handle);     /* at::TensorBase::is_leaf() const */
} tensor_functions;

static PyObject *dispatch_keys; /* tensor -> int, where the key set is not read at its offset */

/* ---- by offsets ------------------------------------------------------------------------ */

static inline const char *
tensor_impl(PyObject *tensor)
{
    return *(const char **)((const char *)tensor + offsets.handle);
}

static inline int64_t
word_at(const char *impl, int offset)
{
    int64_t word;
    memcpy(&word, impl + offset, sizeof word);
    return word;
}

static inline void
dims_by_offsets(const char *impl, const int64_t **sizes, const int64_t **strides, int64_t *rank)
{
    *rank = word_at(impl, offsets.sizes);
    const char *storage = impl + offsets.sizes + 8;
    if (*rank > INLINE_RANK) {
        *sizes = *(const int64_t *const *)storage;
        *strides = *sizes + *rank;
    } else {
        *sizes = (const int64_t *)storage;
        *strides = *sizes + INLINE_RANK;
    }
}

/* ---- comparing ------------------------------------------------------------------------- */

static int
dims_match(const int64_t *expected, const int64_t *actual, int rank, Symbols *symbols)
{
    for (int i = 0; i < rank; i++) {
        if (expected[i] >= 0) {
            if (expected[i] != actual[i]) {
                return 0;
            }
            continue;
        }
        int64_t symbol = -1 - expected[i];
        if (!symbols->bound[symbol]) {
            symbols->bound[symbol] = 1;
            symbols->value[symbol] = actual[i];
        } else if (symbols->value[symbol] != actual[i]) {
            return 0;
        }
    }
    return 1;
}

static int
attribute_is_true(PyObject *tensor, const char *name)
{
    PyObject *value = PyObject_GetAttrString(tensor, name);
    int truth = value == NULL ? -1 : PyObject_IsTrue(value);
    Py_XDECREF(value);
    if (truth < 0) {
        PyErr_Clear();
    }
    return truth;
}

static int
requires_grad_matches(const TensorSpec *spec, PyObject *tensor)
{
    int actual = layout == LAYOUT_OFFSETS
                     ? tensor_functions.requires_grad(tensor_impl(tensor)) & 1
                     : attribute_is_true(tensor, "requires_grad");
    if (actual != spec->requires_grad) {
        return 0;
    }
    if (spec->is_leaf < 0) {
        return 1;
    }
    if (!actual) {
        return spec->is_leaf == 1; /* what needs no gradient is a leaf */
    }
    int leaf = layout == LAYOUT_OFFSETS
                   ? tensor_functions.is_leaf((const char *)tensor + offsets.handle) & 1
                   : attribute_is_true(tensor, "is_leaf");
    return leaf == spec->is_leaf;
}

static int
matches_by_offsets(const TensorSpec *spec, PyObject *tensor, Symbols *symbols)
{
    const char *impl = tensor_impl(tensor);
    uint16_t dtype;
    memcpy(&dtype, impl + offsets.dtype, sizeof dtype);
    if (spec->key_set != 0 && (uint64_t)word_at(impl, offsets.key_set) != spec->key_set) {
        return 0;
    }
    if (dtype != spec->dtype || (int8_t)impl[offsets.device] != spec->device_type ||
        (int8_t)impl[offsets.device + 1] != spec->device_index) {
        return 0;
    }
    const int64_t *sizes, *strides;
    int64_t rank;
    dims_by_offsets(impl, &sizes, &strides, &rank);
    return rank == spec->rank && dims_match(spec->dims, sizes, spec->rank, symbols) &&
           dims_match(spec->dims + spec->rank, strides, spec->rank, symbols);
}

static int
key_set_matches(const TensorSpec *spec, PyObject *tensor)
{
    if (spec->key_set == 0 || dispatch_keys == NULL) {
        return 1;
    }
    PyObject *keys = PyObject_CallOneArg(dispatch_keys, tensor);
    int same = keys != NULL && PyLong_AsUnsignedLongLongMask(keys) == spec->key_set;
    Py_XDECREF(keys);
    PyErr_Clear();
    return same;
}

static int
tuple_to_dims(PyObject *tuple, int64_t *dims, int rank)
{
    if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != rank) {
        return 0;
    }
    for (int i = 0; i < rank; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
    }
    return PyErr_Occurred() == NULL;
}

static int
attribute_equals(PyObject *tensor, const char *name, PyObject *expected)
{
    PyObject *value = PyObject_GetAttrString(tensor, name);
    int equal = value == NULL ? 0 : PyObject_RichCompareBool(value, expected, Py_EQ);
    Py_XDECREF(value);
    return equal == 1;
}

static int
matches_by_attributes(const TensorSpec *spec, PyObject *tensor, Symbols *symbols)
{
    int64_t dims[TENSOR_MAX_RANK];
    PyObject *shape = PyObject_GetAttrString(tensor, "shape");
    PyObject *stride = PyObject_CallMethod(tensor, "stride", NULL);
    int same = attribute_equals(tensor, "dtype", spec->dtype_object) &&
               attribute_equals(tensor, "device", spec->device_object) &&
               tuple_to_dims(shape, dims, spec->rank) &&
               dims_match(spec->dims, dims, spec->rank, symbols) &&
               tuple_to_dims(stride, dims, spec->rank) &&
               dims_match(spec->dims + spec->rank, dims, spec->rank, symbols) &&
               key_set_matches(spec, tensor);
    Py_XDECREF(shape);
    Py_XDECREF(stride);
    PyErr_Clear();
    return same;
}

int
tensor_reads_raw(void)
{
    return layout == LAYOUT_OFFSETS;
}

int
tensor_matches(const TensorSpec *spec, PyObject *value, Symbols *symbols)
{
    if (Py_TYPE(value) != spec->type) {
        return 0;
    }
    int same = layout == LAYOUT_OFFSETS ? matches_by_offsets(spec, value, symbols)
                                        : matches_by_attributes(spec, value, symbols);
    return same && requires_grad_matches(spec, value);
}

/* ---- calibration ----------------------------------------------------------------------- */

#define MAX_PROBES 64

typedef struct {
    PyObject *tensor;
    const char *impl;
    int dtype, device_type, device_index, rank, requires_grad, is_leaf;
    uint64_t key_set;
    int64_t sizes[8], strides[8];
} Probe;

static int
parse_probe(PyObject *item, Probe *probe)
{
    PyObject *sizes, *strides;
    unsigned long long impl, key_set;
    if (!PyArg_ParseTuple(item, "OKiiiO!O!Kpp", &probe->tensor, &impl, &probe->dtype,
                          &probe->device_type, &probe->device_index, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &strides, &key_set, &probe->requires_grad,
                          &probe->is_leaf)) {
        return -1;
    }
    probe->impl = (const char *)(uintptr_t)impl;
    probe->key_set = key_set;
    probe->rank = (int)PyTuple_GET_SIZE(sizes);
    if (probe->rank > 8 || !tuple_to_dims(sizes, probe->sizes, probe->rank) ||
        !tuple_to_dims(strides, probe->strides, probe->rank)) {
        PyErr_SetString(PyExc_ValueError, "bytecap: a bad probe tensor");
        return -1;
    }
    return 0;
}

static int
dims_lie_at(const Probe *probe, int offset)
{
    size_t bytes = (size_t)probe->rank * sizeof(int64_t);
    const char *storage = probe->impl + offset + 8;
    if (word_at(probe->impl, offset) != probe->rank) {
        return 0;
    }
    if (probe->rank > INLINE_RANK) {
        /* Only reached when all inline probes agree: then this is a pointer. */
        const int64_t *outside = *(const int64_t *const *)storage;
        return memcmp(outside, probe->sizes, bytes) == 0 &&
               memcmp(outside + probe->rank, probe->strides, bytes) == 0;
    }
    return memcmp(storage, probe->sizes, bytes) == 0 &&
           memcmp(storage + 8 * INLINE_RANK, probe->strides, bytes) == 0;
}

static int
dtype_lies_at(const Probe *probe, int offset)
{
    uint16_t dtype;
    memcpy(&dtype, probe->impl + offset, sizeof dtype);
    return dtype == probe->dtype;
}

static int
device_lies_at(const Probe *probe, int offset)
{
    return (int8_t)probe->impl[offset] == probe->device_type &&
           (int8_t)probe->impl[offset + 1] == probe->device_index;
}

static int
key_set_lies_at(const Probe *probe, int offset)
{
    return (uint64_t)word_at(probe->impl, offset) == probe->key_set;
}

static size_t
impl_bytes(const Probe *probes, int count)
{
    size_t least = SIZE_MAX;
    for (int i = 0; i < count; i++) {
        size_t bytes = malloc_usable_size((void *)probes[i].impl);
        least = bytes < least ? bytes : least;
    }
    return least;
}

/* The one offset at which every probe agrees, or -1. Probes of high rank come last. */
static int
search(const Probe *probes, int count, int (*lies_at)(const Probe *, int), int step, int bytes)
{
    int found = -1;
    int end = (int)impl_bytes(probes, count);
    for (int offset = 8; offset + bytes <= end; offset += step) {
        int agreed = 0;
        while (agreed < count && lies_at(&probes[agreed], offset)) {
            agreed++;
        }
        if (agreed == count) {
            if (found >= 0) {
                return -1; /* ambiguous: do not guess */
            }
            found = offset;
        }
    }
    return found;
}

static int
find_handle(const Probe *probes, int count)
{
    for (int offset = sizeof(PyObject); offset <= 40; offset += 8) {
        int agreed = 0;
        while (agreed < count && offset + 8 <= Py_TYPE(probes[agreed].tensor)->tp_basicsize &&
               (const char *)word_at((const char *)probes[agreed].tensor, offset) ==
                   probes[agreed].impl) {
            agreed++;
        }
        if (agreed == count) {
            return offset;
        }
    }
    return -1;
}

static int
functions_agree(const Probe *probes, int count)
{
    if (tensor_functions.requires_grad == NULL || tensor_functions.is_leaf == NULL) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        const char *handle = (const char *)probes[i].tensor + offsets.handle;
        if ((tensor_functions.requires_grad(probes[i].impl) & 1) != probes[i].requires_grad ||
            (tensor_functions.is_leaf(handle) & 1) != probes[i].is_leaf) {
            return 0;
        }
    }
    return 1;
}

static Layout
calibrate(const Probe *probes, int count)
{
    *(void **)&tensor_functions.requires_grad =
        torch_symbol("_ZNK3c1010TensorImpl13requires_gradEv");
    *(void **)&tensor_functions.is_leaf = torch_symbol("_ZNK2at10TensorBase7is_leafEv");
    offsets.handle = find_handle(probes, count);
    if (offsets.handle < 0) {
        return LAYOUT_ATTRIBUTES;
    }
    int dims_bytes = 8 + 16 * INLINE_RANK;
    offsets.sizes = search(probes, count, dims_lie_at, 8, dims_bytes);
    offsets.dtype = search(probes, count, dtype_lies_at, 2, 2);
    offsets.device = search(probes, count, device_lies_at, 1, 2);
    offsets.key_set = search(probes, count, key_set_lies_at, 8, 8);
    int found = offsets.sizes >= 0 && offsets.dtype >= 0 && offsets.device >= 0 &&
                offsets.key_set >= 0;
    return found && functions_agree(probes, count) ? LAYOUT_OFFSETS : LAYOUT_ATTRIBUTES;
}

/* configure_tensors(probes, dispatch_keys, module_getattr) -> the name of the layout in use */
static PyObject *
py_configure_tensors(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *items, *keys, *getattr_function;
    Probe probes[MAX_PROBES];
    if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &items, &keys, &getattr_function)) {
        return NULL;
    }
    int count = (int)PyTuple_GET_SIZE(items);
    if (count == 0 || count > MAX_PROBES) {
        PyErr_SetString(PyExc_ValueError, "bytecap: expected 1 to 64 probe tensors");
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        if (parse_probe(PyTuple_GET_ITEM(items, i), &probes[i]) < 0) {
            return NULL;
        }
    }
    Py_XSETREF(dispatch_keys, Py_NewRef(keys));
    fetch_set_module_type(getattr_function);
    layout = best_layout = calibrate(probes, count);
    return PyUnicode_FromString(layout_names[layout]);
}

/* use_tensor_layout(name) -> the name now in use: no better one than calibration allows. */
static PyObject *
py_use_tensor_layout(PyObject *Py_UNUSED(module), PyObject *name)
{
    for (int i = 0; i <= (int)best_layout; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, layout_names[i]) == 0) {
            layout = (Layout)i;
            return Py_NewRef(name);
        }
    }
    return PyErr_Format(PyExc_ValueError, "layout %R is unknown or did not verify here", name);
}

static PyObject *
py_tensor_layout(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return Py_BuildValue("{s:s,s:i,s:i,s:i,s:i,s:i}", "layout", layout_names[layout], "handle",
                         offsets.handle, "sizes", offsets.sizes, "dtype", offsets.dtype, "device",
                         offsets.device, "key_set", offsets.key_set);
}

static PyMethodDef tensor_methods[] = {
    {"configure_tensors", py_configure_tensors, METH_VARARGS,
     "configure_tensors(probes, dispatch_keys, module_getattr) -> layout name"},
    {"use_tensor_layout", py_use_tensor_layout, METH_O, "use_tensor_layout(name) -> name"},
    {"tensor_layout", py_tensor_layout, METH_NOARGS, "How tensors are read, with the offsets."},
    {NULL, NULL, 0, NULL},
};

int
tensor_init(PyObject *module)
{
    return PyModule_AddIntConstant(module, "TENSOR_MAX_RANK", TENSOR_MAX_RANK) < 0
               ? -1
               : PyModule_AddFunctions(module, tensor_methods);
}

/* ---- the expected side ----------------------------------------------------------------- */

/* (type, dtype code, key set, device type, device index, requires_grad, is_leaf or -1, sizes,
 *  strides, dtype object, device object); a size or stride of -1-k is symbol k. */
TensorSpec *
tensor_spec_parse(PyObject *tuple, Py_ssize_t symbol_count)
{
    PyObject *sizes, *strides;
    unsigned long long key_set;
    TensorSpec head;
    if (!PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "O!iKiipiO!O!OO", &PyType_Type, &head.type, &head.dtype,
                          &key_set, &head.device_type, &head.device_index, &head.requires_grad,
                          &head.is_leaf, &PyTuple_Type, &sizes, &PyTuple_Type, &strides,
                          &head.dtype_object, &head.device_object)) {
        return NULL;
    }
    int rank = (int)PyTuple_GET_SIZE(sizes);
    head.key_set = key_set;
    head.rank = rank;
    TensorSpec *spec = PyMem_Calloc(1, sizeof(TensorSpec) + 2 * (size_t)rank * sizeof(int64_t));
    if (spec == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(spec, &head, sizeof head);
    int fits = rank <= TENSOR_MAX_RANK && tuple_to_dims(sizes, spec->dims, rank) &&
               tuple_to_dims(strides, spec->dims + rank, rank);
    for (int i = 0; fits && i < 2 * rank; i++) {
        fits = spec->dims[i] >= -symbol_count;
    }
    if (!fits) {
        PyMem_Free(spec);
        PyErr_SetString(PyExc_ValueError, "bytecap: bad sizes or strides in a tensor check");
        return NULL;
    }
    return spec;
}
