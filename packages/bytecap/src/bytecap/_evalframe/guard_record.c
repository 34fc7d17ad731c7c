/* Recording a run that held: which of its nodes and checks have to be looked at again, and how.
 * The words are those of guard_replay.c. */
#include "guard_replay.h"

typedef enum { STRONG, FETCHED, LATE } Standing;

typedef struct {
    GuardProgram *program;
    PyObject *const *values; /* of the run that held */
    Replay *replay;
    Standing *standing;      /* of each node */
    int *fetch_step;         /* node -> its step, or -1 */
    int *object_step;        /* node -> its object, type or class step, or -1 */
    Step *late;              /* collected apart, appended at the end */
    PyObject **pinned;       /* set of dicts that have a step: open addressing */
    size_t pinned_size;      /* a power of two */
    char *is_held;
} Recorder;

static Step *
add_step(Recorder *recorder, StepKind kind, PyObject *object)
{
    Step *step = &recorder->replay->steps[recorder->replay->first_count++];
    memset(step, 0, sizeof *step);
    step->kind = kind;
    step->object = object;
    return step;
}

static Step *
add_late(Recorder *recorder, StepKind kind, int node)
{
    Step *step = &recorder->late[recorder->replay->late_count++];
    memset(step, 0, sizeof *step);
    step->kind = kind;
    step->node = node;
    return step;
}

/* 1: the dict, which the node is or has, is compared from now on; 0: its changes cannot be seen. */
static int
pin_dict(Recorder *recorder, int node, PyObject *dict)
{
    uint64_t tag = dict_tag(dict);
    if (tag == 0 || recorder->program->nodes[node].is_volatile) {
        return 0;
    }
    size_t mask = recorder->pinned_size - 1;
    size_t at = ((uintptr_t)dict >> 4) & mask;
    while (recorder->pinned[at] != NULL) {
        if (recorder->pinned[at] == dict) {
            return 1;
        }
        at = (at + 1) & mask;
    }
    recorder->pinned[at] = dict;
    Step *step = add_step(recorder, STEP_DICT, dict);
    step->as.tag = tag;
    step->node = node;
    return 1;
}

/* The node's value must be the very object it was. */
static void
anchor(Recorder *recorder, int node)
{
    if (recorder->standing[node] == FETCHED) {
        recorder->replay->steps[recorder->fetch_step[node]].object = recorder->values[node];
    }
}

/* Compares type and instance dict of the node's value; once. 0: not possible. */
static int
pin_object(Recorder *recorder, int node)
{
    PyObject *value = recorder->values[node], *dict = peek_instance_dict(value);
    PyTypeObject *type = Py_TYPE(value);
    if (recorder->standing[node] == LATE || type_version(type) == 0 || dict == NULL) {
        return 0;
    }
    anchor(recorder, node);
    int at = recorder->object_step[node];
    Step *step = at < 0 ? NULL : &recorder->replay->steps[at];
    if (step != NULL && step->kind == STEP_OBJECT) {
        return 1;
    }
    if (step == NULL || step->as.type != type) {
        recorder->object_step[node] = recorder->replay->first_count;
        step = add_step(recorder, STEP_OBJECT, value);
    }
    step->kind = STEP_OBJECT;
    step->as.type = type;
    step->version = type_version(type);
    step->dict = dict;
    return 1;
}

/* Compares the versions of the class that the node's value is, and of its metaclass; once. */
static int
pin_class(Recorder *recorder, int node)
{
    PyTypeObject *type = (PyTypeObject *)recorder->values[node], *metatype = Py_TYPE(type);
    if (recorder->standing[node] == LATE || metatype->tp_getattro != PyType_Type.tp_getattro ||
        type_version(type) == 0 || type_version(metatype) == 0) {
        return 0;
    }
    anchor(recorder, node);
    if (recorder->object_step[node] < 0 ||
        recorder->replay->steps[recorder->object_step[node]].kind != STEP_CLASS) {
        add_step(recorder, STEP_TYPE, (PyObject *)type)->as.type = metatype; /* so it is alive */
        add_step(recorder, STEP_CLASS, (PyObject *)metatype)->version = type_version(metatype);
        recorder->object_step[node] = recorder->replay->first_count;
        add_step(recorder, STEP_CLASS, (PyObject *)type)->version = type_version(type);
    }
    return 1;
}

/* What a class lookup gives without making an object: what lies in a class, or a staticmethod's
 * function. */
static Standing
class_attribute_standing(Recorder *recorder, int index)
{
    const Node *node = &recorder->program->nodes[index];
    PyTypeObject *type = (PyTypeObject *)recorder->values[node->parent];
    if (recorder->values[index] == class_dict(type)) { /* which it has as long as it lives */
        return recorder->standing[node->parent] == STRONG || pin_class(recorder, node->parent) ? STRONG : LATE;
    }
    PyObject *found = _PyType_Lookup(type, node->name);
    int is_kept = found != NULL && (found == recorder->values[index] ||
                                    Py_TYPE(found) == &PyStaticMethod_Type);
    return is_kept && pin_class(recorder, node->parent) ? STRONG : LATE;
}

/* The number of dicts that have to stay as they are for a lookup in them to give `value` again; 0: it was found in none
 * of them, nor in the type. */
static int
dicts_of_value(PyObject *base, PyObject *name, PyObject *value, PyObject **dicts, int count)
{
    PyObject *of_type = _PyType_Lookup(Py_TYPE(base), name);
    PyObject *found = fetch_dict_item(dicts[0], name);
    if (found != NULL || of_type != NULL) {
        return (found != NULL ? found : of_type) == value;
    }
    for (int i = 1; i < count && found == NULL; i++) {
        found = fetch_dict_item(dicts[i], name);
    }
    return found == value ? count : 0;
}

static Standing
attribute_standing(Recorder *recorder, int index)
{
    const Node *node = &recorder->program->nodes[index];
    PyObject *base = recorder->values[node->parent], *value = recorder->values[index];
    PyObject *dicts[ATTRIBUTE_DICTS];
    if (PyType_Check(base)) {
        return class_attribute_standing(recorder, index);
    }
    int count = fetch_attribute_dicts(base, dicts);
    int is_dict = count > 0 && value == dicts[0] &&
                  PyUnicode_CompareWithASCIIString(node->name, "__dict__") == 0;
    int watched = count > 0 && node->is_stable
                      ? dicts_of_value(base, node->name, value, dicts, count) : 0;
    if ((!is_dict && watched == 0) || !pin_object(recorder, node->parent)) {
        return LATE;
    }
    if (is_dict) {
        return STRONG; /* comparing the object compares its dict */
    }
    int are_pinned = 1;
    for (int i = 0; i < watched && are_pinned; i++) {
        are_pinned = pin_dict(recorder, node->parent, dicts[i]);
    }
    if (are_pinned) {
        return STRONG;
    }
    return fetch_dict_item(dicts[0], node->name) == value ? FETCHED : LATE;
}

static Standing
member_standing(Recorder *recorder, int index)
{
    const Node *node = &recorder->program->nodes[index];
    PyObject *parent = recorder->values[node->parent];
    Standing above = recorder->standing[node->parent];
    int ordered = PyODict_Check(parent) && node->kind != FETCH_ITEM;
    if (PyDict_Check(parent) && !ordered) {
        int is_current = node->memo.dict == parent && node->memo.tag == dict_tag(parent) &&
                         node->memo.value == recorder->values[index];
        return above == STRONG && is_current && pin_dict(recorder, node->parent, parent) ? STRONG
                                                                                       : FETCHED;
    }
    if (PyTuple_Check(parent)) {
        return above;
    }
    return PyList_Check(parent) ? FETCHED : LATE;
}

static Standing
standing_of(Recorder *recorder, int index)
{
    const Node *node = &recorder->program->nodes[index];
    if (node->parent >= 0 && recorder->standing[node->parent] == LATE) {
        return LATE;
    }
    switch (node->kind) {
    case FETCH_OBJECT:
    case FETCH_FRAME:
        return STRONG;
    case FETCH_CALL:
        return LATE;
    case FETCH_ATTRIBUTE:
        return attribute_standing(recorder, index);
    case FETCH_ITEM:
    case FETCH_DICT_KEY:
    case FETCH_DICT_VALUE:
        return member_standing(recorder, index);
    default:
        return FETCHED;
    }
}

/* ---- which checks are made again ------------------------------------------------------- */

typedef enum { SETTLED, AGAIN, AGAIN_LATE } Outlook;

static int
is_scalar(PyObject *literal)
{
    return !PyTuple_Check(literal) && !PyList_Check(literal) && !PyDict_Check(literal) &&
           !PySlice_Check(literal) && !PyAnySet_Check(literal);
}

static Outlook
outlook_of_members(Recorder *recorder, Check *check, int node, PyObject *value)
{
    if (recorder->standing[node] == STRONG) {
        if (PyTuple_Check(value) && check->kind == CHECK_LENGTH) {
            return SETTLED;
        }
        int order_matters = check->kind == CHECK_KEYS && PyODict_Check(value);
        if (PyDict_Check(value) && !order_matters && check_holds(check, value, NULL) &&
            pin_dict(recorder, node, value)) {
            return SETTLED;
        }
    }
    int is_plain = PyTuple_Check(value) || PyList_Check(value) || PyDict_Check(value);
    return check->kind == CHECK_LENGTH && is_plain ? AGAIN : AGAIN_LATE;
}

static Outlook
outlook_of_compared(const Recorder *recorder, const Check *check, int node)
{
    Outlook outlook = recorder->standing[node] == STRONG ? SETTLED : AGAIN;
    for (int i = 0; i < check->count; i++) {
        Standing standing = recorder->standing[check->as.words[i]];
        if (standing == LATE) {
            return AGAIN_LATE;
        }
        outlook = standing == STRONG ? outlook : AGAIN;
    }
    return outlook;
}

static Outlook
outlook_of(Recorder *recorder, Check *check, int node)
{
    PyObject *value = recorder->values[node];
    int is_strong = recorder->standing[node] == STRONG;
    switch (check->kind) {
    case CHECK_TYPE_IS:
        return is_strong && !(Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) ? SETTLED : AGAIN;
    case CHECK_IDENTITY:
    case CHECK_WEAK_IDENTITY:
        return is_strong ? SETTLED : AGAIN;
    case CHECK_EQUALS:
        return is_strong && is_scalar(check->argument) ? SETTLED : AGAIN;
    case CHECK_LENGTH:
    case CHECK_KEYS:
    case CHECK_HAS_KEY:
    case CHECK_LACKS_KEY:
        return outlook_of_members(recorder, check, node, value);
    case CHECK_SAME:
    case CHECK_NOT_SAME:
    case CHECK_DISTINCT:
        return outlook_of_compared(recorder, check, node);
    case CHECK_FUNCTION:
    case CHECK_TENSOR:
    case CHECK_SYMBOL:
        return AGAIN;
    case CHECK_HAS_ATTRIBUTE:
    case CHECK_LACKS_ATTRIBUTE:
        return PyType_Check(value) && check_holds(check, value, NULL) &&
                       pin_class(recorder, node)
                   ? SETTLED
                   : AGAIN_LATE;
    default: /* torch's state */
        return AGAIN_LATE;
    }
}

static void
check_now(Recorder *recorder, Check *check, int node)
{
    PyObject *value = recorder->values[node];
    if (recorder->standing[node] == STRONG && check->kind == CHECK_TENSOR) {
        add_step(recorder, STEP_TENSOR, value)->as.check = check;
    } else if (recorder->standing[node] == STRONG && check->kind == CHECK_TYPE_IS) {
        recorder->object_step[node] = recorder->replay->first_count; /* pin_object builds on it */
        add_step(recorder, STEP_TYPE, value)->as.type = (PyTypeObject *)check->argument;
    } else {
        Step *step = add_step(recorder, STEP_CHECK, NULL);
        step->node = node;
        step->check = (int)(check - recorder->program->checks);
    }
}

static void
check_late(Recorder *recorder, const Check *check, int node)
{
    add_late(recorder, STEP_CHECK, node)->check = (int)(check - recorder->program->checks);
    if (recorder->standing[node] == STRONG) {
        recorder->is_held[node] = 1;
    }
    for (int i = 0; i < compared_nodes(check); i++) {
        int64_t compared = check->as.words[i];
        recorder->is_held[compared] |= recorder->standing[compared] == STRONG;
    }
}

static void
record_node(Recorder *recorder, int index)
{
    const Node *node = &recorder->program->nodes[index];
    Standing standing = recorder->standing[index] = standing_of(recorder, index);
    recorder->replay->values[index] = recorder->values[index];
    if (standing == FETCHED) {
        recorder->fetch_step[index] = recorder->replay->first_count;
        Step *step = add_step(recorder, STEP_FETCH, NULL);
        step->node = index;
        step->dict = node->kind == FETCH_ATTRIBUTE
                         ? peek_instance_dict(recorder->values[node->parent]) : NULL;
    } else if (standing == LATE) {
        add_late(recorder, STEP_FETCH, index);
        if (node->parent >= 0 && recorder->standing[node->parent] == STRONG) {
            recorder->is_held[node->parent] = 1;
        }
    }
    for (int i = 0; i < node->check_count; i++) {
        Check *check = &recorder->program->checks[node->first_check + i];
        Outlook outlook = outlook_of(recorder, check, index);
        if (standing == LATE || outlook == AGAIN_LATE) {
            check_late(recorder, check, index);
        } else if (outlook == AGAIN) {
            check_now(recorder, check, index);
        }
    }
}

/* Slots in the order in which steps fetch: those of the first part, then the late ones. */
static void
number_slots(Recorder *recorder)
{
    Replay *replay = recorder->replay;
    for (int i = 0; i < recorder->program->node_count; i++) {
        replay->slots[i] = -1;
    }
    memcpy(replay->steps + replay->first_count, recorder->late,
           (size_t)replay->late_count * sizeof(Step));
    for (int i = 0; i < replay->first_count + replay->late_count; i++) {
        if (replay->steps[i].kind == STEP_FETCH) {
            replay->slots[replay->steps[i].node] = replay->fetched_count++;
        }
    }
    for (int i = 0; i < recorder->program->node_count; i++) {
        if (recorder->is_held[i]) {
            replay->held[replay->held_count++] = i;
        }
    }
}

static int
recorder_begin(Recorder *recorder, GuardProgram *program, const Run *run)
{
    size_t nodes = (size_t)program->node_count + 1, checks = (size_t)program->check_count;
    memset(recorder, 0, sizeof *recorder);
    recorder->program = program;
    recorder->values = run->values;
    recorder->pinned_size = 16;
    /* A node pins at most five dicts (its own, three registries, and the one it is) or two classes and
     * the type of one, and has a fetch, an object and a type step. */
    size_t most_steps = 10 * nodes + 2 * checks;
    while (recorder->pinned_size < 12 * nodes + 2 * checks) {
        recorder->pinned_size *= 2;
    }
    Replay *replay = recorder->replay = PyMem_Calloc(1, sizeof(Replay));
    recorder->standing = PyMem_Calloc(nodes, sizeof(Standing));
    recorder->fetch_step = PyMem_Malloc(nodes * sizeof(int));
    recorder->object_step = PyMem_Malloc(nodes * sizeof(int));
    recorder->late = PyMem_Malloc((nodes + checks) * sizeof(Step));
    recorder->pinned = PyMem_Calloc(recorder->pinned_size, sizeof(PyObject *));
    recorder->is_held = PyMem_Calloc(nodes, 1);
    if (replay == NULL || recorder->standing == NULL || recorder->fetch_step == NULL ||
        recorder->object_step == NULL || recorder->late == NULL || recorder->pinned == NULL || recorder->is_held == NULL) {
        return 0;
    }
    memset(recorder->fetch_step, -1, nodes * sizeof(int));
    memset(recorder->object_step, -1, nodes * sizeof(int));
    replay->steps = PyMem_Malloc(most_steps * sizeof(Step));
    replay->values = PyMem_Calloc(nodes, sizeof(PyObject *));
    replay->slots = PyMem_Calloc(nodes, sizeof(int));
    replay->held = PyMem_Calloc(nodes, sizeof(int));
    return replay->steps != NULL && replay->values != NULL && replay->slots != NULL &&
           replay->held != NULL;
}

void
replay_record(GuardProgram *program, const Run *run)
{
    Recorder recorder;
    if (!tensor_reads_raw() || program->replaying) {
        return;
    }
    replay_free(program->replay);
    program->replay = NULL;
    program->replays = 0;
    if (recorder_begin(&recorder, program, run)) {
        for (int i = 0; i < program->node_count; i++) {
            record_node(&recorder, i);
        }
        number_slots(&recorder);
        Step *fitting = PyMem_Realloc(recorder.replay->steps,
                                      (size_t)(recorder.replay->first_count +
                                               recorder.replay->late_count + 1) * sizeof(Step));
        recorder.replay->steps = fitting != NULL ? fitting : recorder.replay->steps;
        Replay *made_meanwhile = program->replay; /* by code that the garbage collector ran */
        program->replay = recorder.replay;
        recorder.replay = made_meanwhile;
    }
    replay_free(recorder.replay);
    PyMem_Free(recorder.standing);
    PyMem_Free(recorder.fetch_step);
    PyMem_Free(recorder.object_step);
    PyMem_Free(recorder.late);
    PyMem_Free(recorder.pinned);
    PyMem_Free(recorder.is_held);
}
