/* Per-code state in co_extra, and the marks that link codes with owners. */
#include "evalframe.h"

static Py_ssize_t extra_index = -1;

static void
mark_free(Mark *mark)
{
    PyObject *entries = mark->entries;
    PyMem_Free(mark);
    Py_XDECREF(entries);
}

static void
unlink_from_owner(Mark *mark)
{
    Mark **link = &mark->owner->marks;
    while (*link != mark) {
        link = &(*link)->next_of_owner;
    }
    *link = mark->next_of_owner;
}

static void
unlink_from_code(Mark *mark)
{
    Mark **link = &mark->state->marks;
    while (*link != mark) {
        link = &(*link)->next_of_code;
    }
    *link = mark->next_of_code;
}

/* Called by CPython when the code object dies. */
static void
code_state_free(void *extra)
{
    CodeState *state = extra;
    if (state == NULL) {
        return;
    }
    /* Dropping entries may run any code, which must not find the dying code through its owner. */
    for (Mark *mark = state->marks; mark != NULL; mark = mark->next_of_code) {
        unlink_from_owner(mark);
    }
    Mark *mark = state->marks;
    PyMem_Free(state);
    while (mark != NULL) {
        Mark *next = mark->next_of_code;
        mark_free(mark);
        mark = next;
    }
}

int
code_state_init(void)
{
    extra_index = request_code_extra_index(code_state_free);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "bytecap: no co_extra index is free");
        return -1;
    }
    return 0;
}

CodeState *
code_state_get(PyCodeObject *code)
{
    return get_code_extra(code, extra_index);
}

CodeState *
code_state_ensure(PyCodeObject *code)
{
    CodeState *state = code_state_get(code);
    if (state != NULL) {
        return state;
    }
    state = PyMem_Calloc(1, sizeof(CodeState));
    if (state == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    state->code = code;
    if (set_code_extra(code, extra_index, state) < 0) {
        PyMem_Free(state);
        return NULL;
    }
    return state;
}

Mark *
mark_find(CodeState *state, Owner *owner)
{
    for (Mark *mark = state->marks; mark != NULL; mark = mark->next_of_code) {
        if (mark->owner == owner) {
            return mark;
        }
    }
    return NULL;
}

Mark *
mark_ensure(PyCodeObject *code, Owner *owner)
{
    CodeState *state = code_state_ensure(code);
    if (state == NULL) {
        return NULL;
    }
    Mark *mark = mark_find(state, owner);
    if (mark != NULL) {
        return mark;
    }
    PyObject *entries = PyList_New(0);
    Mark *made_meanwhile = mark_find(state, owner); /* by code that the garbage collector ran */
    if (made_meanwhile != NULL) {
        Py_XDECREF(entries);
        return made_meanwhile;
    }
    mark = PyMem_Calloc(1, sizeof(Mark));
    if (mark == NULL || entries == NULL) {
        PyMem_Free(mark);
        Py_XDECREF(entries);
        PyErr_NoMemory();
        return NULL;
    }
    mark->owner = owner;
    mark->state = state;
    mark->entries = entries;
    mark->next_of_code = state->marks;
    state->marks = mark;
    mark->next_of_owner = owner->marks;
    owner->marks = mark;
    return mark;
}

/* The owner dies: take all its marks out of the codes. */
void
mark_unlink_owner(Owner *owner)
{
    while (owner->marks != NULL) {
        Mark *mark = owner->marks;
        owner->marks = mark->next_of_owner;
        unlink_from_code(mark);
        mark_free(mark);
    }
}

int
mark_insert(Mark *mark, Entry *entry)
{
    mark->generation++;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(mark->entries); i++) {
        if (PyList_GET_ITEM(mark->entries, i) == (PyObject *)entry) { /* another thread's doing */
            mark_move_to_front(mark, i);
            return 0;
        }
    }
    return PyList_Insert(mark->entries, 0, (PyObject *)entry);
}

void
mark_move_to_front(Mark *mark, Py_ssize_t index)
{
    PyObject **items = ((PyListObject *)mark->entries)->ob_item;
    PyObject *hit = items[index];
    memmove(items + 1, items, (size_t)index * sizeof(PyObject *));
    items[0] = hit;
    mark->generation++;
}
