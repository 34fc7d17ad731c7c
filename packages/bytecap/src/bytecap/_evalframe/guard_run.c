/* Running a guard program: every node read, every check made, until one fails. */
#include "guards.h"

#define GOOD_SERVICE 32   /* runs after which a recording has paid for itself */
#define PATIENCE 8        /* bad recordings that are replaced at once */
#define LONGEST_WAIT 4096 /* runs between recordings that keep going stale */

int
run_begin(Run *run, size_t values, size_t symbols)
{
    run->count = 0;
    run->heap = NULL;
    run->values = run->value_space;
    run->symbols.value = run->symbol_space;
    run->symbols.bound = run->bound_space;
    if (values > STACK_VALUES || symbols > STACK_SYMBOLS) {
        run->heap = PyMem_Malloc(values * sizeof(PyObject *) + symbols * (sizeof(int64_t) + 1));
        if (run->heap == NULL) {
            return 0;
        }
        run->values = run->heap;
        run->symbols.value = (int64_t *)(run->values + values);
        run->symbols.bound = (char *)(run->symbols.value + symbols);
    }
    memset(run->symbols.bound, 0, symbols);
    return 1;
}

void
run_end(Run *run)
{
    while (run->count > 0) {
        Py_DECREF(run->values[--run->count]);
    }
    PyMem_Free(run->heap);
}

static int
fail(Failure *failure, int guard, PyObject *value)
{
    if (failure != NULL) {
        failure->guard = guard;
        failure->value = Py_XNewRef(value);
    }
    return 0;
}

static int
run_node(GuardProgram *program, Run *run, int index, const Scope *scope, Failure *failure)
{
    Node *node = &program->nodes[index];
    PyObject *parent = node->parent < 0 ? NULL : run->values[node->parent];
    PyObject *value = NULL;
    int owned = 0;
    if (!fetch_node(node, parent, scope, &value, &owned)) {
        return fail(failure, node->guard, NULL);
    }
    if (!owned) {
        Py_INCREF(value); /* reading the next value may let go of what holds this one */
    }
    run->values[run->count++] = value;
    for (int i = 0; i < node->check_count; i++) {
        Check *check = &program->checks[node->first_check + i];
        for (int k = 0; k < compared_nodes(check); k++) {
            check->found[k] = run->values[check->as.words[k]];
        }
        if (!check_holds(check, value, &run->symbols)) {
            return fail(failure, check->guard, value);
        }
    }
    return 1;
}

static int
run_whole(GuardProgram *program, Run *run, const Scope *scope, Failure *failure)
{
    for (int i = 0; i < program->node_count; i++) {
        if (!run_node(program, run, i, scope, failure)) {
            return 0;
        }
    }
    return 1;
}

static PyObject *
inputs_of(const GuardProgram *program, const Run *run)
{
    PyObject *tuple = PyTuple_New(program->input_count);
    for (int i = 0; tuple != NULL && i < program->input_count; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(run->values[program->inputs[i]]));
    }
    return tuple;
}

/* A run that held although the recording did not: record again, without relying on the dict that
 * changed; less and less often if recordings keep going stale. */
static void
record(GuardProgram *program, const Run *run)
{
    if (program->wait > 0) {
        program->wait--;
        return;
    }
    if (program->replay != NULL) {
        int served = program->replays >= GOOD_SERVICE;
        if (!served && program->stale_node >= 0) {
            program->nodes[program->stale_node].is_volatile = 1;
        }
        program->failures = served ? 0 : program->failures + 1;
        int excess = program->failures - PATIENCE;
        program->wait = excess <= 0 ? 0 : excess < 12 ? 1 << excess : LONGEST_WAIT;
    }
    replay_record(program, run);
}

int
guard_program_run(GuardProgram *program, const Scope *scope, Failure *failure, PyObject **inputs)
{
    if (program->replay != NULL && replay_holds(program, scope, inputs)) {
        return 1;
    }
    Run run;
    if (program->spec == NULL ||
        !run_begin(&run, (size_t)program->node_count, (size_t)program->symbol_count)) {
        return fail(failure, 0, NULL); /* cleared by the garbage collector, or no memory */
    }
    int holds = run_whole(program, &run, scope, failure);
    if (holds && inputs != NULL) {
        *inputs = inputs_of(program, &run);
        if (*inputs == NULL) {
            PyErr_Clear();
            holds = fail(failure, 0, NULL);
        }
    }
    if (holds) {
        record(program, &run);
    }
    run_end(&run);
    return holds;
}

int
guard_program_check(PyObject *program, const Scope *scope, PyObject **inputs)
{
    return guard_program_run((GuardProgram *)program, scope, NULL, inputs);
}
