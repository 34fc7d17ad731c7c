/* Reading a tensor's metadata without torch's headers, in one of two ways:
 *
 *   offsets     fields of c10::TensorImpl, at offsets that guards/native.py found by search on probe tensors
 *               (TensorImpl.h: sizes_and_strides_, data_type_, device_opt_, key_set_)
 *   attributes  a Python function that asks the tensor
 */
#include "guards.h"

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

static PyObject *read_by_python; /* tensor -> the facts below, sizes and strides as tuples */

typedef struct {
    int dtype, device_type, device_index, requires_grad, is_leaf;
    uint64_t key_set;
    int64_t rank;
    const int64_t *sizes, *strides;
} TensorFacts;

static inline int64_t
word_at(const char *impl, int offset)
{
    int64_t word;
    memcpy(&word, impl + offset, sizeof word);
    return word;
}

/* is_leaf is only read where the spec asks for it, and a gradient makes it a question. */
static inline void
facts_at_offsets(const TensorSpec *spec, PyObject *tensor, TensorFacts *facts)
{
    const char *handle = (const char *)tensor + offsets.handle, *impl = *(const char *const *)handle;
    const char *storage = impl + offsets.sizes + 8;
    uint16_t dtype;
    memcpy(&dtype, impl + offsets.dtype, sizeof dtype);
    facts->dtype = dtype;
    facts->device_type = (int8_t)impl[offsets.device];
    facts->device_index = (int8_t)impl[offsets.device + 1];
    facts->key_set = (uint64_t)word_at(impl, offsets.key_set);
    facts->rank = word_at(impl, offsets.sizes);
    int is_inline = facts->rank <= INLINE_RANK;
    facts->sizes = is_inline ? (const int64_t *)storage : *(const int64_t *const *)storage;
    facts->strides = facts->sizes + (is_inline ? INLINE_RANK : facts->rank);
    facts->requires_grad = tensor_functions.requires_grad(impl) & 1;
    facts->is_leaf = spec->is_leaf < 0 || !facts->requires_grad || (tensor_functions.is_leaf(handle) & 1);
}

/* 0: not known, or of another rank. No error is left set. */
static int
facts_by_python(const TensorSpec *spec, PyObject *tensor, TensorFacts *facts, int64_t *dims)
{
    PyObject *tuple = read_by_python != NULL ? PyObject_CallOneArg(read_by_python, tensor) : NULL;
    PyObject *sizes, *strides;
    unsigned long long key_set = 0;
    int known = tuple != NULL &&
                PyArg_ParseTuple(tuple, "iiiKppO!O!", &facts->dtype, &facts->device_type, &facts->device_index,
                                 &key_set, &facts->requires_grad, &facts->is_leaf, &PyTuple_Type, &sizes,
                                 &PyTuple_Type, &strides) &&
                read_words(sizes, dims, spec->rank) && read_words(strides, dims + spec->rank, spec->rank);
    Py_XDECREF(tuple);
    PyErr_Clear();
    facts->key_set = key_set;
    facts->rank = spec->rank;
    facts->sizes = dims;
    facts->strides = dims + spec->rank;
    return known;
}

/* ---- comparing ------------------------------------------------------------------------- */

static int
dims_match(const int64_t *expected, const int64_t *actual, int64_t rank, Symbols *symbols)
{
    for (int64_t i = 0; i < rank; i++) {
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

int
tensor_reads_raw(void)
{
    return layout == LAYOUT_OFFSETS;
}

int
tensor_matches(PyObject *type, const TensorSpec *spec, PyObject *value, Symbols *symbols)
{
    TensorFacts facts;
    int64_t dims[2 * TENSOR_MAX_RANK];
    if ((PyObject *)Py_TYPE(value) != type) {
        return 0;
    }
    if (layout == LAYOUT_OFFSETS) {
        facts_at_offsets(spec, value, &facts);
    } else if (!facts_by_python(spec, value, &facts, dims)) {
        return 0;
    }
    return (spec->key_set == 0 || facts.key_set == (uint64_t)spec->key_set) && facts.dtype == spec->dtype &&
           facts.device_type == spec->device_type && facts.device_index == spec->device_index &&
           facts.requires_grad == spec->requires_grad && (spec->is_leaf < 0 || facts.is_leaf == spec->is_leaf) &&
           facts.rank == spec->rank && dims_match(spec->dims, facts.sizes, spec->rank, symbols) &&
           dims_match(spec->dims + spec->rank, facts.strides, spec->rank, symbols);
}

/* ---- from Python ----------------------------------------------------------------------- */

/* configure_tensors(read_by_python, module_getattr, place): place is () where no offsets verified, else the offsets and
 * the addresses of the functions. */
static PyObject *
py_configure_tensors(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *reader, *getattr_function, *place;
    unsigned long long requires_grad, is_leaf;
    if (!PyArg_ParseTuple(args, "OOO!", &reader, &getattr_function, &PyTuple_Type, &place)) {
        return NULL;
    }
    int has_offsets = PyTuple_GET_SIZE(place) > 0;
    if (has_offsets) {
        if (!PyArg_ParseTuple(place, "iiiiiKK", &offsets.handle, &offsets.sizes, &offsets.dtype, &offsets.device,
                              &offsets.key_set, &requires_grad, &is_leaf)) {
            return NULL;
        }
        *(void **)&tensor_functions.requires_grad = (void *)(uintptr_t)requires_grad;
        *(void **)&tensor_functions.is_leaf = (void *)(uintptr_t)is_leaf;
    }
    Py_XSETREF(read_by_python, Py_NewRef(reader));
    fetch_set_module_type(getattr_function);
    layout = best_layout = has_offsets ? LAYOUT_OFFSETS : LAYOUT_ATTRIBUTES;
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
     "configure_tensors(read_by_python, module_getattr, place) -> layout name"},
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
