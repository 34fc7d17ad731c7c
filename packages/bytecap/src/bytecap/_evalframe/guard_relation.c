/* Conditions on size symbols: integer expressions in postfix order. */
#include "guards.h"

static const char *const op_names[OP_KINDS] = {
    "const", "symbol", "+", "-", "*", "//", "%", "min", "max",
    "==", "!=", "<", "<=", ">", ">=",
};

#define RELATION_STACK 64

static int
floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        return 0;
    }
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder != 0 && ((*remainder < 0) != (b < 0))) {
        *quotient -= 1;
        *remainder += b;
    }
    return 1;
}

static int
apply(OpKind kind, int64_t a, int64_t b, int64_t *result)
{
    int64_t other;
    switch (kind) {
    case OP_ADD: return !__builtin_add_overflow(a, b, result);
    case OP_SUB: return !__builtin_sub_overflow(a, b, result);
    case OP_MUL: return !__builtin_mul_overflow(a, b, result);
    case OP_FLOORDIV: return floor_divide(a, b, result, &other);
    case OP_MOD: return floor_divide(a, b, &other, result);
    case OP_MIN: *result = a < b ? a : b; return 1;
    case OP_MAX: *result = a > b ? a : b; return 1;
    case OP_EQ: *result = a == b; return 1;
    case OP_NE: *result = a != b; return 1;
    case OP_LT: *result = a < b; return 1;
    case OP_LE: *result = a <= b; return 1;
    case OP_GT: *result = a > b; return 1;
    default: *result = a >= b; return 1;
    }
}

/* Overflow, division by zero and unbound symbols fail. */
int
relation_holds(const Relation *relation, const Symbols *symbols)
{
    int64_t stack[RELATION_STACK];
    int top = 0;
    for (int i = 0; i < relation->count; i++) {
        const Op *op = &relation->ops[i];
        if (op->kind == OP_CONST) {
            stack[top++] = op->operand;
        } else if (op->kind == OP_SYMBOL) {
            if (!symbols->bound[op->operand]) {
                return 0;
            }
            stack[top++] = symbols->value[op->operand];
        } else {
            top--;
            if (!apply(op->kind, stack[top - 1], stack[top], &stack[top - 1])) {
                return 0;
            }
        }
    }
    return stack[0] != 0;
}


/* ((op, operand)*, guard) */
int
relation_parse(PyObject *item, Py_ssize_t symbol_count, Relation *relation)
{
    PyObject *ops, *kind;
    long long operand;
    if (!PyTuple_Check(item) ||
        !PyArg_ParseTuple(item, "O!i", &PyTuple_Type, &ops, &relation->guard)) {
        return -1;
    }
    relation->count = (int)PyTuple_GET_SIZE(ops);
    relation->ops = PyMem_Calloc((size_t)relation->count + 1, sizeof(Op));
    int depth = 0, deepest = 0;
    for (int i = 0; relation->ops != NULL && i < relation->count; i++) {
        PyObject *op = PyTuple_GET_ITEM(ops, i);
        if (!PyTuple_Check(op) || !PyArg_ParseTuple(op, "OL", &kind, &operand)) {
            return -1;
        }
        int code = guard_kind_of(kind, op_names, OP_KINDS);
        if (code < 0 || (code == OP_SYMBOL && (operand < 0 || operand >= symbol_count))) {
            return -1;
        }
        relation->ops[i] = (Op){(OpKind)code, operand};
        if (code > OP_SYMBOL && depth < 2) {
            return -1;
        }
        depth += code <= OP_SYMBOL ? 1 : -1;
        deepest = depth > deepest ? depth : deepest;
    }
    return relation->ops != NULL && depth == 1 && deepest <= RELATION_STACK ? 0 : -1;
}
