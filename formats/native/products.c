/* Low-rank updates of a base: base plus the product of two factors, rounded as the base's type is.
 *
 * step adds a product to a base; moved gives differences as doubles; both let go of the interpreter
 * lock. has_no_low_rank looks at a few rows and columns. The twin in numpy is products.py beside this, with identical results: factors are whole
 * numbers of 24 bits and their rank is at most 64, so every sum of products is exact in a double,
 * in whatever order it is made. The layout is in docs/spec/model.md, section "Low rank".
 *
 * Only what Python 3.11's limited API has is used. Plain C11 with GNU attributes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "parts.h"

#include "numbers.h"

#include <math.h>

enum { AT_ONCE = 512, MOST_RANK = 64 };

/* Bits of 32-bit floats whose subnormal numbers are zeros of their sign. */
INLINE uint32_t normal(uint32_t bits)
{
    return bits & 0x7F800000u ? bits : bits & 0x80000000u;
}

INLINE double widened(const uint8_t *at, size_t i, int size)
{
    uint32_t bits = size == 4 ? load32(at + 4 * i) : (uint32_t)load16(at + 2 * i) << 16;
    float found;
    bits = normal(bits);
    memcpy(&found, &bits, 4);
    return (double)found;
}

/* Rounded to the nearest, ties to even; the base's own bits where there is no number. */
INLINE void narrowed(double number, const uint8_t *base, size_t i, int size, uint8_t *out)
{
    float single = (float)number;
    uint32_t bits;
    memcpy(&bits, &single, 4);
    if (size == 4) {
        bits = number == number ? normal(bits) : load32(base + 4 * i);
        memcpy(out + 4 * i, &bits, 4);
        return;
    }
    uint16_t half = (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
    if (!(half & 0x7F80u))
        half &= 0x8000u;
    if (number != number)
        half = load16(base + 2 * i);
    memcpy(out + 2 * i, &half, 2);
}

typedef struct {
    const double *left, *right; /* (rows, rank) and (rank, columns) */
    size_t rank, columns, skipped;
    double scale;
} product;

/* Numbers [at, at + part) of one row, of which `column` is the first. */
INLINE void step_run(const product *by, const double *left, size_t column, size_t part,
                     const uint8_t *base, int size, uint8_t *out)
{
    double sums[AT_ONCE];
    size_t k = 0, columns = by->columns;
    for (size_t i = 0; i < part; i++)
        sums[i] = 0;
    /* Four at a time: each sum is loaded and stored for that. */
    for (; k + 4 <= by->rank; k += 4) {
        const double *right = by->right + k * columns + column, *of = left + k;
        for (size_t i = 0; i < part; i++)
            sums[i] += of[0] * right[i] + of[1] * right[i + columns] +
                       of[2] * right[i + 2 * columns] + of[3] * right[i + 3 * columns];
    }
    for (; k < by->rank; k++) {
        const double *right = by->right + k * columns + column;
        for (size_t i = 0; i < part; i++)
            sums[i] += left[k] * right[i];
    }
    for (size_t i = 0; i < part; i++)
        sums[i] = sums[i] * by->scale + widened(base, i, size);
    for (size_t i = 0; i < part; i++)
        narrowed(sums[i], base, i, size, out);
}

INLINE void step_product_body(const product *by, const uint8_t *base, size_t count, int size,
                              uint8_t *out)
{
    size_t row = 0, column = by->skipped;
    for (size_t at = 0; at < count;) {
        size_t left = by->columns - column, part = count - at < left ? count - at : left;
        part = part < AT_ONCE ? part : AT_ONCE;
        size_t start = at * (size_t)size;
        step_run(by, by->left + row * by->rank, column, part, base + start, size, out + start);
        at += part;
        column += part;
        if (column == by->columns) {
            column = 0;
            row++;
        }
    }
}

EVERY_MACHINE(void, step_product,
              (const product *by, const uint8_t *base, size_t count, int size, uint8_t *out),
              if (size == 4) step_product_body(by, base, count, 4, out);
              else step_product_body(by, base, count, 2, out););

INLINE void moved_body(const uint8_t *frame, const uint8_t *base, size_t count, int size,
                       double *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = widened(frame, i, size) - widened(base, i, size);
}

EVERY_MACHINE(void, moved_numbers,
              (const uint8_t *frame, const uint8_t *base, size_t count, int size, double *out),
              if (size == 4) moved_body(frame, base, count, 4, out);
              else moved_body(frame, base, count, 2, out););

/* ------------------------------------------------------------------ rank
 *
 * Whether singular values need not be found to see that few of them cannot be most of a matrix. Of
 * their squares, in units of a limit's, those above 1 hold at most the sum of f(square) of all, where
 * f is 0 or more, and no less than a square from 1 to the largest: where that is little, the others
 * hold much. f is a square's square s2; or, where m is no less than the largest, (1 + g) s2 - g s2^2
 * with g = (1 - 1 / m) / (m^2 - 1), which is the square itself at 1 and at m. And where the squares
 * less the limit's are those of a matrix still, all are above it. What these say has to spare what
 * rounding can change. */

enum { PROBED = 64 };

static const double MOST_ABOVE = 0.84, TWICE = 4, EXACT = 1e-12, FAR_ABOVE = 100;

typedef struct {
    const uint8_t *frame, *base;
    size_t columns, rows_asked, columns_asked;
    const int64_t *row_at, *column_at;
    int size;
    double noise; /* of each number, in units of what the base's are about */
} probe;

/* Differences at the places that are asked for, by row and by column; the sum of the base's squares. */
static double probed(const probe *of, double moved[][PROBED], double turned[][PROBED])
{
    double squares = 0;
    for (size_t i = 0; i < of->rows_asked; i++)
        for (size_t j = 0; j < of->columns_asked; j++) {
            size_t at = (size_t)of->row_at[i] * of->columns + (size_t)of->column_at[j];
            double base = widened(of->base, at, of->size);
            moved[i][j] = turned[j][i] = widened(of->frame, at, of->size) - base;
            squares += base * base;
        }
    return squares;
}

/* Adds (rows, inner) times (inner, rows) to `out`. */
INLINE void multiply(double one[][PROBED], double other[][PROBED], size_t rows, size_t inner,
                     double out[][PROBED])
{
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < inner; k++)
            for (size_t j = 0; j < rows; j++)
                out[i][j] += one[i][k] * other[k][j];
}

INLINE double sum_of_squares(double of[][PROBED], size_t size)
{
    double sum = 0;
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++)
            sum += of[i][j] * of[i][j];
    return sum;
}

/* The most that eigenvalues above a limit add up to, by their second and fourth powers. */
INLINE double above_hold(double products[][PROBED], size_t size, double limit)
{
    double squared[PROBED][PROBED] = {{0}};
    multiply(products, products, size, size, squared);
    double second = sum_of_squares(products, size) / (limit * limit);
    double fourth = sum_of_squares(squared, size) / (limit * limit * limit * limit);
    double most = sqrt(sqrt(fourth));
    if (!(most < FAR_ABOVE)) /* where nothing is gained, and digits are lost */
        return limit * second;
    double less = most > 1 ? (1 - 1 / most) / (most * most - 1) : 0;
    return limit * ((1 + less) * second - less * fourth);
}

/* Whether a symmetric matrix is positive definite; its upper half is changed. */
INLINE bool is_definite(double of[][PROBED], size_t size)
{
    for (size_t k = 0; k < size; k++) {
        if (!(of[k][k] > 0))
            return false;
        for (size_t i = k + 1; i < size; i++) {
            double factor = of[k][i] / of[k][k];
            for (size_t j = i; j < size; j++)
                of[i][j] -= factor * of[k][j];
        }
    }
    return true;
}

INLINE bool has_no_low_rank_body(const probe *of)
{
    double moved[PROBED][PROBED], turned[PROBED][PROBED], products[PROBED][PROBED] = {{0}};
    size_t rows = of->rows_asked, columns = of->columns_asked;
    double mean = probed(of, moved, turned) / (double)(rows * columns), energy = 0;
    multiply(moved, turned, rows, columns, products);
    for (size_t i = 0; i < rows; i++)
        energy += products[i][i];
    double fourth = sum_of_squares(products, rows);
    double side = sqrt((double)rows) + sqrt((double)columns);
    double limit = of->noise * of->noise * mean * side * side;
    if (!(fourth < HUGE_VAL) || !(limit < HUGE_VAL))
        return false;
    if (fourth < MOST_ABOVE * limit * energy || above_hold(products, rows, limit) < MOST_ABOVE * energy)
        return true;
    for (size_t i = 0; i < rows; i++)
        products[i][i] -= TWICE * limit;
    return rows <= columns && limit > EXACT * energy && is_definite(products, rows);
}

EVERY_MACHINE(bool, has_no_low_rank, (const probe *of), return has_no_low_rank_body(of););

/* ------------------------------------------------------------------ Python */

static bool known_float(int size)
{
    if (size == 2 || size == 4)
        return true;
    PyErr_Format(PyExc_ValueError, "no floats of %d bytes", size);
    return false;
}

/* Whether both factors have as many numbers as rows and columns of the frame ask for. */
static bool fits(Py_ssize_t rank, Py_ssize_t count, Py_ssize_t columns,
                 Py_ssize_t skipped, const Py_buffer *left, const Py_buffer *right)
{
    if (columns < 1 || skipped < 0 || skipped >= columns || rank < 0 || rank > MOST_RANK) {
        PyErr_Format(PyExc_ValueError, "no product of rank %zd with rows of %zd numbers", rank,
                     columns);
        return false;
    }
    Py_ssize_t rows = (count + skipped + columns - 1) / columns;
    return is_size("left", left->len, rows * rank * 8) &&
           is_size("right", right->len, rank * columns * 8);
}

static PyObject *step_product(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[4] = {{0}};
    int size;
    Py_ssize_t rank, columns, skipped, count;
    product by;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*iy*y*nnndw*", &at[0], &size, &at[1], &at[2], &rank,
                          &columns, &skipped, &by.scale, &at[3]))
        return NULL;
    if (known_float(size) && (count = numbers(&at[0], size)) >= 0 &&
        items(&at[1], 8, "left") >= 0 && items(&at[2], 8, "right") >= 0 &&
        fits(rank, count, columns, skipped, &at[1], &at[2]) &&
        is_size("out", at[3].len, at[0].len)) {
        by.left = at[1].buf, by.right = at[2].buf;
        by.rank = (size_t)rank, by.columns = (size_t)columns, by.skipped = (size_t)skipped;
        Py_BEGIN_ALLOW_THREADS
        best_step_product(&by, at[0].buf, (size_t)count, size, at[3].buf);
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, 4);
    return found;
}

static PyObject *moved_numbers(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[3] = {{0}};
    int size;
    Py_ssize_t count;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iw*", &at[0], &at[1], &size, &at[2]))
        return NULL;
    if (known_float(size) && (count = numbers(&at[0], size)) >= 0 &&
        is_size("base", at[1].len, at[0].len) && items(&at[2], 8, "out") >= 0 &&
        is_size("out", at[2].len, count * 8)) {
        Py_BEGIN_ALLOW_THREADS
        best_moved_numbers(at[0].buf, at[1].buf, (size_t)count, size, at[2].buf);
        Py_END_ALLOW_THREADS
        found = Py_NewRef(Py_None);
    }
    release(at, 3);
    return found;
}

static bool are_below(const Py_buffer *places, Py_ssize_t count)
{
    const int64_t *at = places->buf;
    for (Py_ssize_t i = 0; i < places->len / 8; i++)
        if (at[i] < 0 || at[i] >= count)
            return false;
    return places->len > 0 && places->len <= 8 * PROBED;
}

/* has_no_low_rank(frame, base, size, columns, rows asked, columns asked, noise): see above. */
static PyObject *has_no_low_rank(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer at[4] = {{0}};
    Py_ssize_t columns, count;
    probe of;
    PyObject *found = NULL;
    if (!PyArg_ParseTuple(arguments, "y*y*iny*y*d", &at[0], &at[1], &of.size, &columns, &at[2],
                          &at[3], &of.noise))
        return NULL;
    if (known_float(of.size) && (count = numbers(&at[0], of.size)) >= 0 &&
        is_size("base", at[1].len, at[0].len) && items(&at[2], 8, "rows") >= 0 &&
        items(&at[3], 8, "columns") >= 0) {
        if (columns < 1 || !are_below(&at[2], count / columns) || !are_below(&at[3], columns)) {
            PyErr_Format(PyExc_ValueError, "no rows of %zd numbers among %zd, or not those asked for",
                         columns, count);
        } else {
            of.frame = at[0].buf, of.base = at[1].buf, of.columns = (size_t)columns;
            of.row_at = at[2].buf, of.rows_asked = (size_t)at[2].len / 8;
            of.column_at = at[3].buf, of.columns_asked = (size_t)at[3].len / 8;
            found = PyBool_FromLong(best_has_no_low_rank(&of));
        }
    }
    release(at, 4);
    return found;
}

static PyMethodDef METHODS[] = {
    {"has_no_low_rank", has_no_low_rank, METH_VARARGS, NULL},
    {"step_product", step_product, METH_VARARGS, NULL},
    {"moved_numbers", moved_numbers, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int add_products(PyObject *module)
{
    CHOOSE(step_product);
    CHOOSE(moved_numbers);
    CHOOSE(has_no_low_rank);
    return PyModule_AddFunctions(module, METHODS);
}
