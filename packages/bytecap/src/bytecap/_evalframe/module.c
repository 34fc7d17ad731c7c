/* bytecap._evalframe: the frame hook, its cache, the evaluator of guards, and what iterators will give. */
#include "evalframe.h"

/* Single-phase initialisation on purpose: the hook belongs to one interpreter, and CPython then
 * refuses to import this into a second one with its own GIL. */
static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "bytecap._evalframe",
    "The frame hook, its per-code cache and the evaluator of guards.", -1, code_methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__evalframe(void)
{
    static PyObject *only; /* a second import must not make the types and the index again */
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError,
                        "bytecap works in the main interpreter only: it hooks one interpreter");
        return NULL;
    }
    if (only != NULL) {
        return Py_NewRef(only);
    }
    PyObject *module = PyModule_Create(&module_definition);
    if (module == NULL) {
        return NULL;
    }
    if (code_state_init() < 0 || hook_init() < 0 || objects_init(module) < 0 ||
        dispatch_init(module) < 0 || guard_program_init(module) < 0 || iterators_init(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    if (PyModule_AddStringConstant(module, "INPUTS", INPUTS_NAME) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    only = Py_NewRef(module);
    return module;
}
