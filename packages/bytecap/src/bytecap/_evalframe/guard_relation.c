/* Conditions on size symbols: integer expressions in postfix order. */
#include "guards.h"

#define OPERATION_ROWS(ROW) \
    ROW(CONST, "const") ROW(SYMBOL, "symbol") \
    ROW(ADD, "+") ROW(SUB, "-") ROW(MUL, "*") ROW(FLOORDIV, "//") ROW(MOD, "%") ROW(MIN, "min") ROW(MAX, "max") \
    ROW(EQ, "==") ROW(NE, "!=") ROW(LT, "<") ROW(LE, "<=") ROW(GT, ">") ROW(GE, ">=")

#define OPERATION_KIND(kind, name) OP_##kind,
typedef enum { OPERATION_ROWS(OPERATION_KIND) OP_KINDS } OpKind;

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
apply(int64_t kind, int64_t a, int64_t b, int64_t *result)
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

int
relation_holds(const Check *check, const Symbols *symbols)
{
    int64_t stack[RELATION_STACK];
    int top = 0;
    for (const int64_t *op = check->as.words, *end = op + check->count; op < end; op += 2) {
        if (op[0] == OP_CONST) {
            stack[top++] = op[1];
        } else if (op[0] == OP_SYMBOL) {
            if (!symbols->bound[op[1]]) {
                return 0;
            }
            stack[top++] = symbols->value[op[1]];
        } else {
            top--;
            if (!apply(op[0], stack[top - 1], stack[top], &stack[top - 1])) {
                return 0;
            }
        }
    }
    return stack[0] != 0;
}

int
relation_is_sound(const Check *check, Py_ssize_t symbol_count)
{
    int depth = 0, deepest = 0;
    for (int i = 0; i + 1 < check->count; i += 2) {
        int64_t code = check->as.words[i], operand = check->as.words[i + 1];
        if (code < 0 || code >= OP_KINDS || (code == OP_SYMBOL && (operand < 0 || operand >= symbol_count)) ||
            (code > OP_SYMBOL && depth < 2)) {
            return 0;
        }
        depth += code <= OP_SYMBOL ? 1 : -1;
        deepest = depth > deepest ? depth : deepest;
    }
    return check->count % 2 == 0 && depth == 1 && deepest <= RELATION_STACK;
}

int
relation_init(PyObject *module)
{
#define OPERATION_FORMAT(kind, name) "si"
#define OPERATION_NUMBER(kind, name) name, OP_##kind,
    PyObject *numbers = Py_BuildValue("{" OPERATION_ROWS(OPERATION_FORMAT) "}", OPERATION_ROWS(OPERATION_NUMBER) NULL);
    int added = PyModule_AddObjectRef(module, "OPERATIONS", numbers);
    Py_XDECREF(numbers);
    return added;
}
