// strips.cl: windows out of registers, for pooling and convolutions of few channels on GPUs.
//
// A work-item computes a tile of TH x TW neighbours in a plane of a result. The rows that it needs are read one after
// the other, each once, as a strip of SPANX elements of which all windows of the tile take theirs: SPANY strips from
// row tile * STEPY + LEADY on, columns from tile * STEPX + LEADX on. Windows have KH x KW taps, DY and DX apart, and
// lie SY and SX apart, the first one PY and PX before the image.
//   TRANSPOSED 0: a result (t, e) of a window meets at tap (u, v) the element (t SY + u DY, e SX + v DX) of the strips.
//   TRANSPOSED 1: results are pixels, strips hold windows: tap (u, v) of window (r, q) meets pixel (t, e) where
//             (r + LEADY) SY = t + PY - u DY, (q + LEADX) SX = e + PX - v DX.
// All of that is known when the program is built, so nothing of it is left in unrolled loops.
// E is the compute type, S the storage type, I the type of offsets; VX and VY elements are read and written at once.
// Tiles lie behind one another along rows, then planes. Launch: one work-item a tile, whole groups.
typedef struct {
    long xn, xc, xh, xw, tiles, chunk, divisor;   // strides of what is read; all tiles, and those of a group
    int C, mine, theirs;                // channels of the result, of a group in the result and in what is read
    int H, W, Rh, Rw, down, across, with_pad;   // H x W is read, Rh x Rw the result, in tiles down x across
} Dims;

typedef JOIN(u, I) U;   // unsigned division is cheaper
#define UNROLL _Pragma("unroll")
#define WIDTH_1
#define WIDTH_2 2
#define WIDTH_4 4
#define WIDTH_8 8
#define WIDE(V, N) JOIN(V, JOIN(WIDTH_, N))
#ifdef NARROW
#define LOAD_HALF1A(p) LOAD_HALF(p, 0)
#define LOAD_HALF2A(p) LOAD_HALF2(p)
#define LOAD_BFLOAT1A(p) LOAD_BFLOAT(p, 0)
#define LOAD_BFLOAT2A(p) LOAD_BFLOAT2(p)
#define STORE_HALF1A(v, p) STORE_HALF(p, 0, v)
#define STORE_HALF2A(v, p) STORE_HALF2(v, p)
#define STORE_BFLOAT1A(v, p) STORE_BFLOAT(p, 0, v)
#define STORE_BFLOAT2A(v, p) STORE_BFLOAT2(v, p)
#define GET(p, N) JOIN(JOIN(JOIN(LOAD_, NARROW), N), A)(p)
#define PUT(v, p, N) JOIN(JOIN(JOIN(STORE_, NARROW), N), A)(v, p)
#else
#define GET(p, N) GET_AS(S, p, N)
#define PUT(v, p, N) PUT_AS(S, v, p, N)
#endif
#define GET_AS(P, p, N) (*(__global const WIDE(P, N)*)(p))
#define PUT_AS(P, v, p, N) (*(__global WIDE(P, N)*)(p) = (v))
#define GET_INT(p, N) GET_AS(int, p, N)

#if TRANSPOSED
#define ROW_GAP(t, r) ((t) + PY - ((r) + LEADY) * SY)
#define COLUMN_GAP(e, v) ((e) + PX - (v) * DX - LEADX * SX)
#define MEETS(e, v) (COLUMN_GAP(e, v) % SX == 0)
#define AT(e, v) (COLUMN_GAP(e, v) / SX)
#else
#define ROW_GAP(t, r) ((r) - (t) * SY)
#define MEETS(e, v) 1
#define AT(e, v) ((e) * SX + (v) * DX)
#endif
#define MEETS_ROW(t, r) (ROW_GAP(t, r) >= 0 && ROW_GAP(t, r) % DY == 0 && ROW_GAP(t, r) / DY < KH)
#define TAP_ROW(t, r) (ROW_GAP(t, r) / DY)
#define PAIRS(e, v)                              \
    UNROLL for (int v = 0; v < KW; v++) \
        UNROLL for (int e = 0; e < TW; e++) \
            if (MEETS(e, v))

// Where tile number `tile` lies: its plane, its first result (i0, j0), and the first element (y0, x0) of its strips.
#define TILE_AT(tile)                                                                                            \
    const I line = (U)(tile) / (U)D.across, plane = (U)line / (U)D.down;                                       \
    const int down = (int)(line - plane * D.down), across = (int)((tile) - line * D.across), i0 = down * TH,     \
              j0 = across * TW, y0 = down * STEPY + LEADY, x0 = across * STEPX + LEADX;

// NAME(to, row, step, x0, width, inside, fill): SPAN elements of a row of `width` from x0 on, `fill` where there are
// none. x0 is LEAD beyond a multiple of N: whole vectors where the strip holds them.
#define READER(NAME, V, P, SPAN, LEAD, N, GET)                                                                     \
    static inline void NAME(V* to, __global const P* row, I step, int x0, int width, bool inside, V fill) {        \
        UNROLL for (int e = 0; e < SPAN; e++) {                                                                    \
            const int place = (e + LEAD % N + N) % N, first = e - place;                                           \
            if (N == 1 || first < 0 || first + N > SPAN)                                                           \
                to[e] = inside && (uint)(x0 + e) < (uint)width ? GET(row + (x0 + e) * step, 1) : fill;             \
            else if (place == 0) {                                                                                 \
                WIDE(V, N) v = (WIDE(V, N))(fill);                                                                 \
                if (inside && (uint)(x0 + e) < (uint)width) v = GET(row + x0 + e, N);                              \
                UNROLL for (int k = 0; k < N; k++) to[e + k] = ((const V*)&v)[k];                                  \
            }                                                                                                      \
        }                                                                                                          \
    }
READER(read_strip, E, S, SPANX, LEADX, VX, GET)

// The first `left` of TW results to a row.
#define WRITER(NAME, V, P, PUT)                                                              \
    static inline void NAME(__global P* to, const V* from, int left) {                       \
        UNROLL for (int e = 0; e < TW; e += VY)                                              \
            if (e < left) {                                                                  \
                WIDE(V, VY) v;                                                               \
                UNROLL for (int k = 0; k < VY; k++) ((V*)&v)[k] = from[e + k];               \
                PUT(v, to + e, VY);                                                          \
            }                                                                                \
    }
#define PUT_INT(v, p, N) PUT_AS(int, v, p, N)
WRITER(write_row, E, S, PUT)
