/* What has to be looked at again of a run that held.
 *
 * A value that was found through dicts whose tags and types whose versions are unchanged is the
 * same object as before, and alive: those dicts held it all the time. It is not fetched again, and
 * what was checked of it stands as long as it cannot change: identity, literals, the keys of a
 * dict with an unchanged tag. What is left is a list of steps: compare tags, look into tensors,
 * fetch arguments.
 *
 *   node ::= strong     found through unchanged dicts from another strong or anchored value
 *                       (a dict that was seen to change between runs that hold is volatile: its
 *                       values are fetched)
 *          | fetched    read again (arguments, globals, list items); if it leads to strong nodes it
 *                       is an anchor: it must be the object it was
 *          | late       reading or checking it may make objects, so it comes last
 *   step ::= object | dict | type | class | tensor | fetch | check
 *
 * In the first part nothing is allocated and no Python code runs, so pointers that a step compared
 * stay good for the steps behind it. A pointer is looked into only after what holds it was
 * compared in this same run; a recording may therefore go stale without harm.
 */
#include "guard_replay.h"

void
replay_free(Replay *replay)
{
    if (replay != NULL) {
        PyMem_Free(replay->steps);
        PyMem_Free(replay->values);
        PyMem_Free(replay->slots);
        PyMem_Free(replay->held);
        PyMem_Free(replay);
    }
}

static inline PyObject *
value_of(const Replay *replay, const Run *run, int node)
{
    int slot = replay->slots[node];
    return slot < 0 ? replay->values[node] : run->values[slot];
}

static int
check_again(GuardProgram *program, Run *run, int node, int index)
{
    Check *check = &program->checks[index];
    for (int i = 0; i < compared_nodes(check); i++) {
        check->found[i] = value_of(program->replay, run, (int)check->as.words[i]);
    }
    return check_holds(check, value_of(program->replay, run, node), &run->symbols);
}

static int
fetch_again(GuardProgram *program, Run *run, const Step *step, const Scope *scope)
{
    Node *node = &program->nodes[step->node];
    PyObject *parent =
        node->parent < 0 ? NULL : value_of(program->replay, run, node->parent);
    PyObject *value = NULL;
    int owned = 0;
    if (step->dict != NULL) {
        value = fetch_dict_item(step->dict, node->name);
    } else if (!fetch_node(node, parent, scope, &value, &owned)) {
        value = NULL;
    }
    if (value == NULL) {
        return 0;
    }
    if (!owned) {
        Py_INCREF(value);
    }
    run->values[run->count++] = value;
    return step->object == NULL || step->object == value;
}

static inline int
object_is_unchanged(const Step *step)
{
    return Py_TYPE(step->object) == step->as.type &&
           step->version == type_version(step->as.type) &&
           peek_instance_dict(step->object) == step->dict;
}

static int
steps_hold(GuardProgram *program, Run *run, const Scope *scope, const Step *step, int count)
{
    for (const Step *end = step + count; step < end; step++) {
        int holds;
        switch (step->kind) {
        case STEP_OBJECT:
            holds = object_is_unchanged(step);
            break;
        case STEP_DICT:
            holds = dict_tag(step->object) == step->as.tag;
            break;
        case STEP_TYPE:
            holds = Py_TYPE(step->object) == step->as.type;
            break;
        case STEP_CLASS:
            holds = type_version((PyTypeObject *)step->object) == step->version;
            break;
        case STEP_TENSOR:
            holds = check_holds(step->as.check, step->object, &run->symbols);
            break;
        case STEP_FETCH:
            holds = fetch_again(program, run, step, scope);
            break;
        default:
            holds = check_again(program, run, step->node, step->check);
        }
        if (!holds) {
            program->stale_node = step->kind == STEP_DICT ? step->node : -1;
            return 0;
        }
    }
    return 1;
}

/* The inputs that are known once `fetched` slots are filled. */
static void
take_inputs(const GuardProgram *program, const Run *run, PyObject *tuple, int fetched)
{
    for (int i = 0; i < program->input_count; i++) {
        int slot = program->replay->slots[program->inputs[i]];
        if (slot < fetched && PyTuple_GET_ITEM(tuple, i) == NULL) {
            PyObject *value = value_of(program->replay, run, program->inputs[i]);
            PyTuple_SET_ITEM(tuple, i, Py_NewRef(value));
        }
    }
}

/* The late part may run code that drops what strong nodes stand for: it is held meanwhile. */
static int
late_part_holds(GuardProgram *program, Run *run, const Scope *scope)
{
    Replay *replay = program->replay;
    for (int i = 0; i < replay->held_count; i++) {
        Py_INCREF(replay->values[replay->held[i]]);
    }
    int holds = steps_hold(program, run, scope, replay->steps + replay->first_count,
                           replay->late_count);
    for (int i = 0; i < replay->held_count; i++) {
        Py_DECREF(replay->values[replay->held[i]]);
    }
    return holds;
}

static int
run_replay(GuardProgram *program, Run *run, const Scope *scope, PyObject *tuple)
{
    Replay *replay = program->replay;
    if (!steps_hold(program, run, scope, replay->steps, replay->first_count)) {
        return 0;
    }
    if (tuple != NULL) {
        take_inputs(program, run, tuple, run->count);
    }
    if (!late_part_holds(program, run, scope)) {
        return 0;
    }
    if (tuple != NULL) {
        take_inputs(program, run, tuple, run->count);
    }
    return 1;
}

int
replay_holds(GuardProgram *program, const Scope *scope, PyObject **inputs)
{
    Run run;
    PyObject *tuple = NULL;
    if (!tensor_reads_raw()) {
        return 0;
    }
    if (inputs != NULL) { /* made first: making it may collect garbage */
        tuple = PyTuple_New(program->input_count);
        if (tuple == NULL) {
            PyErr_Clear();
            return 0;
        }
    }
    if (program->replay == NULL || /* that garbage may have been this program's recording */
        !run_begin(&run, (size_t)program->replay->fetched_count, (size_t)program->symbol_count)) {
        Py_XDECREF(tuple);
        return 0;
    }
    /* Late steps may run code that runs this program and records anew: not under our feet. */
    program->replaying++;
    int holds = run_replay(program, &run, scope, tuple);
    program->replaying--;
    run_end(&run);
    if (!holds) {
        Py_XDECREF(tuple);
        return 0;
    }
    program->replays++;
    if (inputs != NULL) {
        *inputs = tuple;
    }
    return 1;
}
