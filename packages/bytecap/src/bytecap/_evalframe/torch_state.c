/* torch's modes, read in a few nanoseconds: grad, inference, autocast, default dtype, determinism,
 * the dispatch keys of the thread (active modes and transforms show there). */
#include "guards.h"

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
} torch_functions;

static PyObject *read_by_python; /* () -> tuple, the readings by torch's Python functions */
static int use_native;
static __thread uint64_t *local_keys; /* this thread's raw_local_dispatch_key_set */

/* c10 stores the thread's keys xored with constants, so that zeroed memory is the default. */
static uint64_t included_xor, excluded_xor;

static int
load_functions(void)
{
    *(void **)&torch_functions.grad_enabled = torch_symbol("_ZN3c108GradMode10is_enabledEv");
    *(void **)&torch_functions.inference_mode =
        torch_symbol("_ZN3c1013InferenceMode10is_enabledEv");
    *(void **)&torch_functions.default_dtype =
        torch_symbol("_ZN3c1031get_default_dtype_as_scalartypeEv");
    *(void **)&torch_functions.global_context = torch_symbol("_ZN2at13globalContextEv");
    *(void **)&torch_functions.deterministic =
        torch_symbol("_ZNK2at7Context23deterministicAlgorithmsEv");
    *(void **)&torch_functions.function_modes =
        torch_symbol("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    *(void **)&torch_functions.autocast_enabled =
        torch_symbol("_ZN2at8autocast19is_autocast_enabledEN3c1010DeviceTypeE");
    *(void **)&torch_functions.autocast_dtype =
        torch_symbol("_ZN2at8autocast18get_autocast_dtypeEN3c1010DeviceTypeE");
    return torch_functions.grad_enabled && torch_functions.inference_mode &&
           torch_functions.default_dtype &&
           torch_functions.global_context && torch_functions.deterministic &&
           torch_functions.function_modes && torch_functions.autocast_enabled &&
           torch_functions.autocast_dtype &&
           torch_symbol("_ZN3c104impl26raw_local_dispatch_key_setE") != NULL;
}

static void
read_native(TorchState *state)
{
    if (local_keys == NULL) {
        local_keys = torch_symbol("_ZN3c104impl26raw_local_dispatch_key_setE");
    }
    state->grad_enabled = torch_functions.grad_enabled() & 1;
    state->inference_mode = torch_functions.inference_mode() & 1;
    state->default_dtype = torch_functions.default_dtype();
    state->deterministic = torch_functions.deterministic(torch_functions.global_context()) & 1;
    state->function_modes = (int)torch_functions.function_modes();
    state->included = local_keys[0] ^ included_xor;
    state->excluded = local_keys[1] ^ excluded_xor;
    state->autocast_cpu_dtype =
        (torch_functions.autocast_enabled(0) & 1) ? torch_functions.autocast_dtype(0) : -1;
    state->autocast_cuda_dtype =
        (torch_functions.autocast_enabled(1) & 1) ? torch_functions.autocast_dtype(1) : -1;
}

static int
state_from_tuple(PyObject *tuple, TorchState *state)
{
    unsigned long long included, excluded;
    if (!PyTuple_Check(tuple) ||
        !PyArg_ParseTuple(tuple, "ppipiKKii", &state->grad_enabled, &state->inference_mode,
                          &state->default_dtype, &state->deterministic, &state->function_modes,
                          &included, &excluded, &state->autocast_cpu_dtype,
                          &state->autocast_cuda_dtype)) {
        return -1;
    }
    state->included = included;
    state->excluded = excluded;
    return 0;
}

int
torch_state_read(TorchState *state)
{
    if (use_native) {
        read_native(state);
        return 0;
    }
    if (read_by_python == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "bytecap: configure_state was not called");
        return -1;
    }
    PyObject *tuple = PyObject_CallNoArgs(read_by_python);
    int status = tuple == NULL ? -1 : state_from_tuple(tuple, state);
    Py_XDECREF(tuple);
    return status;
}

static int
states_equal(const TorchState *a, const TorchState *b)
{
    return a->grad_enabled == b->grad_enabled && a->inference_mode == b->inference_mode &&
           a->default_dtype == b->default_dtype && a->deterministic == b->deterministic &&
           a->function_modes == b->function_modes && a->included == b->included &&
           a->excluded == b->excluded && a->autocast_cpu_dtype == b->autocast_cpu_dtype &&
           a->autocast_cuda_dtype == b->autocast_cuda_dtype;
}

int
torch_state_matches(const TorchState *expected)
{
    TorchState state;
    if (torch_state_read(&state) < 0) {
        PyErr_Clear();
        return 0;
    }
    return states_equal(&state, expected);
}

int
torch_state_parse(PyObject *tuple, TorchState *state)
{
    return state_from_tuple(tuple, state);
}

/* configure_state(read_by_python) -> bool: may the state be read natively? The native reading must
 * agree with Python's now; the caller then compares the two under each mode. */
static PyObject *
py_configure_state(PyObject *module, PyObject *reader)
{
    (void)module;
    Py_XSETREF(read_by_python, Py_NewRef(reader));
    use_native = 0;
    TorchState expected, native;
    if (torch_state_read(&expected) < 0) {
        return NULL;
    }
    if (!load_functions()) {
        Py_RETURN_FALSE;
    }
    included_xor = excluded_xor = 0;
    read_native(&native);
    included_xor = native.included ^ expected.included;
    excluded_xor = native.excluded ^ expected.excluded;
    read_native(&native);
    use_native = states_equal(&native, &expected);
    return PyBool_FromLong(use_native);
}

static PyObject *
py_read_state(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    TorchState s;
    if (torch_state_read(&s) < 0) {
        return NULL;
    }
    return Py_BuildValue("(NNiNiKKii)", PyBool_FromLong(s.grad_enabled),
                         PyBool_FromLong(s.inference_mode), s.default_dtype,
                         PyBool_FromLong(s.deterministic), s.function_modes,
                         (unsigned long long)s.included, (unsigned long long)s.excluded,
                         s.autocast_cpu_dtype, s.autocast_cuda_dtype);
}

static PyObject *
py_use_native_state(PyObject *module, PyObject *flag)
{
    (void)module;
    use_native = PyObject_IsTrue(flag) == 1;
    Py_RETURN_NONE;
}

static PyMethodDef state_methods[] = {
    {"configure_state", py_configure_state, METH_O,
     "configure_state(read_by_python) -> bool: the native reading agrees with Python's."},
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
