/* torch's modes, read in a few nanoseconds: grad, inference, autocast, default dtype, determinism, the dispatch keys of
 * the thread (active modes and transforms show there). */
#include "guards.h"
#include <dlfcn.h>

/* C++ functions of libc10 and libtorch_cpu; ScalarType and DeviceType are int8_t. */
static struct {
    uint8_t (*grad_enabled)(void);
    uint8_t (*inference_mode)(void);
    int8_t (*default_dtype)(void);
    void *(*global_context)(void);
    uint8_t (*deterministic)(void *context);
    int64_t (*function_modes)(void);
    uint8_t (*autocast_enabled)(int8_t device);
    int8_t (*autocast_dtype)(int8_t device);
    void *library; /* that has KEY_SET, whose address is the thread's */
} torch_functions;

#define KEY_SET "_ZN3c104impl26raw_local_dispatch_key_setE"
#define FUNCTIONS (Py_ssize_t)(sizeof torch_functions / sizeof(void *) - 1)

static PyObject *read_by_python; /* () -> tuple, the readings by torch's Python functions */
static int use_native;
static __thread uint64_t *local_keys; /* this thread's raw_local_dispatch_key_set */

/* c10 stores the thread's keys xored with constants, so that zeroed memory is the default. */
static uint64_t included_xor, excluded_xor;

/* 0: not all of them are there, or an error is set. */
static int
take_functions(PyObject *addresses, const char *path)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(addresses) && i < FUNCTIONS; i++) {
        void *address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i));
        memcpy((char *)&torch_functions + (size_t)i * sizeof address, &address, sizeof address);
        if (address == NULL) {
            return 0;
        }
    }
    torch_functions.library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    return PyTuple_GET_SIZE(addresses) == FUNCTIONS && torch_functions.library != NULL &&
           dlsym(torch_functions.library, KEY_SET) != NULL;
}

static int64_t
autocast_dtype(int8_t device)
{
    return torch_functions.autocast_enabled(device) & 1 ? torch_functions.autocast_dtype(device) : -1;
}

static TorchState
read_native(void)
{
    if (local_keys == NULL) {
        local_keys = dlsym(torch_functions.library, KEY_SET);
    }
    return (TorchState){{
        torch_functions.grad_enabled() & 1,
        torch_functions.inference_mode() & 1,
        torch_functions.default_dtype(),
        torch_functions.deterministic(torch_functions.global_context()) & 1,
        torch_functions.function_modes(),
        (int64_t)(local_keys[0] ^ included_xor),
        (int64_t)(local_keys[1] ^ excluded_xor),
        autocast_dtype(0),
        autocast_dtype(1),
    }};
}

static int
state_read(TorchState *state)
{
    if (use_native) {
        *state = read_native();
        return 0;
    }
    if (read_by_python == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "bytecap: configure_state was not called");
        return -1;
    }
    PyObject *tuple = PyObject_CallNoArgs(read_by_python);
    int known = tuple != NULL && read_words(tuple, state->word, STATE_WORDS);
    Py_XDECREF(tuple);
    if (!known && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "bytecap: a bad state of torch");
    }
    return known ? 0 : -1;
}

int
torch_state_matches(const TorchState *expected)
{
    TorchState state;
    if (state_read(&state) < 0) {
        PyErr_Clear();
        return 0;
    }
    return memcmp(&state, expected, sizeof state) == 0;
}

/* configure_state(read_by_python, addresses, path) -> bool: may the state be read natively? The native reading must
 * agree with Python's now; the caller then compares the two under each mode. addresses: of the functions above. path:
 * of the library that has the thread's keys; nothing is loaded that the process does not hold already. */
static PyObject *
py_configure_state(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *reader, *addresses;
    const char *path;
    if (!PyArg_ParseTuple(args, "OO!s", &reader, &PyTuple_Type, &addresses, &path)) {
        return NULL;
    }
    Py_XSETREF(read_by_python, Py_NewRef(reader));
    use_native = 0;
    TorchState expected;
    if (state_read(&expected) < 0) {
        return NULL;
    }
    if (!take_functions(addresses, path)) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    included_xor = excluded_xor = 0;
    TorchState native = read_native();
    included_xor = (uint64_t)(native.word[STATE_INCLUDED] ^ expected.word[STATE_INCLUDED]);
    excluded_xor = (uint64_t)(native.word[STATE_INCLUDED + 1] ^ expected.word[STATE_INCLUDED + 1]);
    native = read_native();
    use_native = memcmp(&native, &expected, sizeof native) == 0;
    return PyBool_FromLong(use_native);
}

static PyObject *
py_read_state(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    TorchState state;
    if (state_read(&state) < 0) {
        return NULL;
    }
    const int64_t *w = state.word;
    return Py_BuildValue("(LLLLLKKLL)", w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]);
}

static PyObject *
py_use_native_state(PyObject *Py_UNUSED(module), PyObject *flag)
{
    use_native = PyObject_IsTrue(flag) == 1;
    Py_RETURN_NONE;
}

static PyMethodDef state_methods[] = {
    {"configure_state", py_configure_state, METH_VARARGS,
     "configure_state(read_by_python, addresses, path) -> bool: the native reading agrees with Python's."},
    {"read_state", py_read_state, METH_NOARGS,
     "(grad, inference, default dtype, deterministic, function modes, included keys, excluded "
     "keys, CPU autocast dtype, CUDA autocast dtype)"},
    {"use_native_state", py_use_native_state, METH_O, "use_native_state(flag)"},
    {NULL, NULL, 0, NULL},
};

int
torch_state_init(PyObject *module)
{
    return PyModule_AddFunctions(module, state_methods);
}
