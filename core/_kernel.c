/* Stub of the optional compiled kernel: proves that it builds, and that its absence is harmless. */
#include <Python.h>

static PyObject *answer(PyObject *self, PyObject *args)
{
    (void)self;
    (void)args;
    return PyLong_FromLong(1);
}

static PyMethodDef methods[] = {
    {"abi", answer, METH_NOARGS, "Return the number of this kernel's interface."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel", "Compiled inner loops.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModule_Create(&module);
}
