/* Functions of libtorch that is already in the process, found by name: no headers, no linking. */
#include "guards.h"
#include <dlfcn.h>

static void *libraries[3];

/* configure_libraries(paths): full paths of libc10, libtorch_cpu, in any order. Nothing is loaded
 * that the process does not hold already. */
static PyObject *
py_configure_libraries(PyObject *module, PyObject *paths)
{
    (void)module;
    if (!PyTuple_Check(paths) || PyTuple_GET_SIZE(paths) > 3) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of at most three paths");
        return NULL;
    }
    Py_ssize_t found = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(paths); i++) {
        const char *path = PyUnicode_AsUTF8(PyTuple_GET_ITEM(paths, i));
        if (path == NULL) {
            return NULL;
        }
        libraries[i] = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
        found += libraries[i] != NULL;
    }
    return PyLong_FromSsize_t(found);
}

void *
torch_symbol(const char *name)
{
    for (int i = 0; i < 3; i++) {
        void *address = libraries[i] != NULL ? dlsym(libraries[i], name) : NULL;
        if (address != NULL) {
            return address;
        }
    }
    return NULL;
}

static PyMethodDef symbol_methods[] = {
    {"configure_libraries", py_configure_libraries, METH_O,
     "configure_libraries(paths) -> how many of them the process holds."},
    {NULL, NULL, 0, NULL},
};

int
torch_symbols_init(PyObject *module)
{
    return PyModule_AddFunctions(module, symbol_methods);
}
