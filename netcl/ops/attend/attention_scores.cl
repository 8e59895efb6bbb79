// attention_scores.cl: what the scores of attention are made of beside q k^T: which keys a query sees, and what is
// added. Comes before attention_rows.cl.
//
// Query i sees the keys [lo(i), hi(i)): all, or up to its own place (causal) or `window` places from it, where the key
// at the place of query i is i + off; or what BOUNDS says of each query (attention_bounds.cl). Of those, a key may be
// masked as padding (MASK), or by -infinity or false in a mask (BIAS: its type). With s = scale * q k^T:
//   SOFTCAP   s = cap * tanh(s / cap)       SLOPES   s -= slope * |j - (i + off)|       BIAS   s += mask[i][j]
//   SINKS     the softmax's denominators also have exp(sink)
//   DROPOUT   weights, not denominators, are then taken times 0 or 1 / (1 - p)
// `unit` is what scores are multiplied by: 1, or log2(e) where weights are powers of two.
// E: compute type, S: storage type.
typedef JOIN(E, 4) E4;
#define NONE (-INFINITY)
#define LOG2E ((E)1.4426950408889634)
#define LN2 ((E)0.6931471805599453)
#define LOWEST ((E)-3.4028235e38f)   // a score that -FLT_MAX in a mask makes: not -infinity, or a whole row would be 0

// Lengths, then strides of the mask, of q, k, v, g in elements by batch, head and row (rows themselves are contiguous).
typedef struct {
    long B, H, G, Tq, Tk, D, Dv, causal, off, window, mask_b, bias_b, bias_h, bias_q, bias_k, slope_b, bounds_b;
    long qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, splits, rows;
} Dims;

#ifdef MASK
#define MASK_ARGS __global const uchar* restrict mask, long omask,
#define MASK_OF(b) marks.mask = mask + omask + (b) * d.mask_b;
#define REAL(j) (marks.mask[j] == 0)
#else
#define MASK_ARGS
#define MASK_OF(b)
#define REAL(j) 1
#endif

#ifdef BIAS
#define BIAS_ARGS __global const BIAS* restrict bias, long obias,
#define BIAS_OF(b, h) marks.bias = bias + obias + (b) * d.bias_b + (h) * d.bias_h;
#define MOVE_BIAS(n, d) marks.bias += (n) * (d)->bias_h;
#define BIAS_AT(i, j) bias_value(marks.bias + (i) * d->bias_q + (j) * d->bias_k)
static inline E bias_value(__global const BIAS* p) {
#ifdef BIAS_BOOL
    return *p ? 0 : NONE;
#elif defined(BIAS_ROWS)
    return LOAD(p, 0);
#else
    return *p;
#endif
}
#else
#define BIAS_ARGS
#define BIAS_OF(b, h)
#define MOVE_BIAS(n, d)
#endif

#ifdef SLOPES
#define SLOPE_ARGS __global const E* restrict slopes, long oslopes,
#define SLOPE_OF(b, h) marks.slopes = slopes + oslopes + (b) * d.slope_b + (h);
#define MOVE_SLOPE(n) marks.slopes += n;
#else
#define SLOPE_ARGS
#define SLOPE_OF(b, h)
#define MOVE_SLOPE(n)
#endif

#ifdef SINKS
#define SINK_ARGS __global const E* restrict sinks, long osinks,
#define SINK_OF(h) marks.sink = sinks[osinks + (h)];
#define SINK marks.sink
#define SINK_WEIGHT 1
#else
#define SINK_ARGS
#define SINK_OF(h)
#define SINK NONE
#define SINK_WEIGHT 0
#endif

#ifdef SOFTCAP
#define CAP_ARGS E cap,
#define CAP_OF marks.cap = cap;
#else
#define CAP_ARGS
#define CAP_OF
#endif

// The block of numbers of 4 keys of a query is drawn + its row among all * blocks of a row: the same on every device.
#ifdef DROPOUT
#define DROP_ARGS long drawn, uint key0, uint key1, uint dropped, E kept,
#define DROP_OF marks.drawn = drawn; marks.key0 = key0; marks.key1 = key1; marks.dropped = dropped; marks.kept = kept;
#else
#define DROP_ARGS
#define DROP_OF
#endif

#ifdef BOUNDS
#define BOUND_ARGS __global const int* restrict bounds, long obounds,
#define BOUND_OF(b) marks.bounds = bounds + obounds + (b) * d.bounds_b;
#define OWN(d, i) marks.bounds[4 * min((int)(i), (int)(d)->Tq - 1) + 2]
#else
#define BOUND_ARGS
#define BOUND_OF(b)
#define OWN(d, i) ((int)(i) + (int)(d)->off)     // the key at the place of query i
#endif

#define MARKS_ARGS BOUND_ARGS MASK_ARGS BIAS_ARGS SLOPE_ARGS SINK_ARGS CAP_ARGS DROP_ARGS
#define MARKS(b, h) \
    Marks marks; \
    marks.row = ((b) * d.H + (h)) * d.Tq; \
    DROP_OF BOUND_OF(b) MASK_OF(b) BIAS_OF(b, h) SLOPE_OF(b, h) SINK_OF(h) CAP_OF
#define NEXT_HEADS(n, d) marks.row += (n) * (d)->Tq; MOVE_BIAS(n, d) MOVE_SLOPE(n)
#if defined(BIAS) || defined(SLOPES) || defined(SOFTCAP)
#define SHAPED
#endif

// Those of one sample and head.
typedef struct {
    long row;   // the head's first, among those of all heads
#ifdef BOUNDS
    __global const int* bounds;
#endif
#ifdef MASK
    __global const uchar* mask;
#endif
#ifdef BIAS
    __global const BIAS* bias;
#endif
#ifdef SLOPES
    __global const E* slopes;
#endif
#ifdef SINKS
    E sink;
#endif
#ifdef SOFTCAP
    E cap;
#endif
#ifdef DROPOUT
    long drawn;
    uint key0, key1, dropped;
    E kept;
#endif
} Marks;

// Where a walk over keys begins: pairs of a mask and blocks of random numbers do not begin at every key.
#ifdef DROPOUT
#define BEGIN(lo) ((lo) & ~3)
#elif defined(BIAS_PAIRS)
#define BEGIN(lo) ((lo) & ~1)
#else
#define BEGIN(lo) (lo)
#endif

#ifdef BOUNDS
#define lo_of(d, i) marks.bounds[4 * min((int)(i), (int)(d)->Tq - 1)]
#define hi_of(d, i) marks.bounds[4 * min((int)(i), (int)(d)->Tq - 1) + 1]
// The first query whose bound (0: lo, 1: hi) is at least `key`.
static inline int first_query(Marks marks, const Dims* d, int bound, int key) {
    int from = 0, end = d->Tq;
    while (from < end) {
        const int middle = (from + end) / 2;
        if (marks.bounds[4 * middle + bound] < key) from = middle + 1;
        else end = middle;
    }
    return from;
}
#define FIRST_QUERY(key) first_query(marks, &d, 1, (key) + 1)
#define END_QUERY(key) first_query(marks, &d, 0, (key) + 1)
#else
static inline int lo_of(const Dims* d, int i) {
    int first = d->window > 0 ? i + (int)d->off - (int)d->window + 1 : 0;
    return max(first, 0);
}

static inline int hi_of(const Dims* d, int i) {
    int last = i + (int)d->off + 1;
    if (!d->causal) last = d->window > 0 ? last + (int)d->window - 1 : (int)d->Tk;
    return min(last, (int)d->Tk);
}
// Queries that see one of some keys: from the place of the first `key` on (causal), at most `window` away, up to ...
#define FIRST_QUERY(key) \
    max(0, d.causal ? (int)((key) - d.off) : d.window > 0 ? (int)((key) - d.off - d.window + 1) : 0)
// ... the one behind the last that sees the last `key`.
#define END_QUERY(key) (d.window > 0 ? min((int)d.Tq, (int)((key) - d.off + d.window)) : (int)d.Tq)
#endif

#ifdef MASK
#define WHOLE(first, last, j, n) false
#else
// whether the queries first .. last see all of n keys from j on: by far the most tiles are so
#define WHOLE(first, last, j, n) ((j) >= lo_of(&d, last) && (j) + (n) <= hi_of(&d, first))
#endif
#define SEEN(lo, hi, j) ((j) >= (lo) && (j) < (hi) && REAL(j))
#ifdef BIAS
#define UNSEEN(i, j) (!REAL(j) || BIAS_AT(i, j) == NONE)
#else
#define UNSEEN(i, j) (!REAL(j))
#endif

// What s = scale * q_i . k_j * unit becomes before a mask. `bend` is set to the factor of its slope, 1 - tanh^2.
static inline E bent(E s, E unit, Marks marks, const Dims* d, int i, int j, E* bend) {
#ifdef SOFTCAP
    const E t = tanh(s / (marks.cap * unit));
    s = marks.cap * unit * t;
    *bend = 1 - t * t;
#endif
#ifdef SLOPES
    s -= marks.slopes[0] * unit * (E)abs(j - OWN(d, i));
#endif
    return s;
}

// A score with the mask's value b.
static inline E added(E s, E b, E unit) {
    const E c = b * unit;
    return b == NONE ? NONE : s + (c < LOWEST ? LOWEST : c);
}

// The score that s becomes. Tiles ask for what lies past the end of either axis, too.
static inline E shaped(E s, E unit, Marks marks, const Dims* d, int i, int j, E* bend) {
    s = bent(s, unit, marks, d, i, j, bend);
#ifdef BIAS
    s = added(s, BIAS_AT(min(i, (int)d->Tq - 1), min(j, (int)d->Tk - 1)), unit);
#endif
    return s;
}

// e^(s - lse), or 2^ of it, is at most 1: where scores are as low as LOWEST, roundings of lse must not count.
#ifdef BIAS
#define BELOW(T, x) ((x) > (T)(0) ? (T)(0) : (x))
#else
#define BELOW(T, x) (x)
#endif

// The factor of a weight: 0 for `dropped` of 2^24 words, else 1 / (1 - p).
#ifdef DROPOUT
PHILOX(philox, uint, ulong, (uint), (ulong))
#define FACTOR(word) ((word) >> 8 < marks.dropped ? (E)0 : marks.kept)
#define BLOCKS_OF(i) (marks.drawn + (marks.row + (i)) * ((d->Tk + 3) / 4))
// of the keys j .. j + 3, where j is a multiple of 4
static inline E4 factors(Marks marks, const Dims* d, int i, int j) {
    uint x[4];
    philox(BLOCKS_OF(i) + j / 4, marks.key0, marks.key1, x);
    return (E4)(FACTOR(x[0]), FACTOR(x[1]), FACTOR(x[2]), FACTOR(x[3]));
}
static inline E factor(Marks marks, const Dims* d, int i, int j) {
    uint x[4];
    philox(BLOCKS_OF(i) + j / 4, marks.key0, marks.key1, x);
    const uint word = (j & 2) ? (j & 1) ? x[3] : x[2] : (j & 1) ? x[1] : x[0];
    return FACTOR(word);
}
#else
#define factor(marks, d, i, j) 1
#endif
