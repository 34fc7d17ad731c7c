/* The recording of a run: made by guard_record.c, run by guard_replay.c. */
#ifndef BYTECAP_GUARD_REPLAY_H
#define BYTECAP_GUARD_REPLAY_H

#include "guards.h"

typedef enum {
    STEP_OBJECT, STEP_DICT, STEP_TYPE, STEP_CLASS, STEP_TENSOR, STEP_FETCH, STEP_CHECK
} StepKind;

typedef struct {
    StepKind kind;
    unsigned version;  /* object: of its type; class: its own */
    int node;          /* fetch, check; dict: whose it is */
    int check;         /* check: its index */
    PyObject *object;  /* fetch: the anchor, or NULL */
    union {
        PyTypeObject *type;       /* object, type */
        uint64_t tag;             /* dict */
        Check *check;             /* tensor */
    } as;
    PyObject *dict;    /* object: its instance dict; fetch: where an attribute is, or NULL */
} Step;

struct Replay {
    int first_count, late_count; /* steps of the first part, then the late ones */
    int fetched_count;           /* fetched and late nodes: slots of a run */
    Step *steps;
    PyObject **values;           /* node -> its value, if strong (borrowed) */
    int *slots;                  /* node -> its slot in a run, or -1 if strong */
    int *held;                   /* strong nodes that late steps look into */
    int held_count;
};

#endif
