// fold.cl: out[kept] = FINAL(fold over the reduced axes of VALUE), the value being a fused elementwise chain.
//
//   axes:     kept (decoded by KEPT)  |  walked (decoded by WALK)  |  inner (vectors of W lanes, at step i_<operand>)
//   ROWS:     inner is reduced; the lanes are folded at the end;      out[row * parts + part]
//   otherwise inner is kept, a lane per column (COLUMNS);             out[(row * parts + part) * cols + column]
//
// ON_CPU (CPU devices): local size 1, no barriers; an item folds `unit` rows, or 8 vectors of columns, in blocks so
// that rounding errors stay small. Else: groups of WG; `unit` items share a row (or a run of columns) and fold through
// a tree in local memory. Long reductions are cut into `parts` along outer (by `ostep`) and inner (by `istep`, `iparts`
// of them); a second launch folds the parts. Several values may be folded at once, `EACH` naming their numbers
// (`STORED` of those that are written): A holds a vector of each. In a PAIR the second is the place of the first.
// STEP and PART (whole and partial vectors, which also store what is not folded), INIT<k>, COMBINE, FINAL, KEPT, WALK,
// PARAMETERS, T<k> and E<k> (vector and lane), PUT<k> and PUT_ALL<k> come from fold_source.py.
// GPU trees: Harris 2007, "Optimizing Parallel Reduction".
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

#define START_ONE(k) a_->v##k = INIT##k;
#define JOIN_ONE(k) a_->v##k = COMBINE(a_->v##k, b_->v##k);
#define STORE_ONE(k) PUT_ALL##k(at_, FINAL(a_->v##k));
#define TAIL_ONE(k) put_lanes##k(sum_##k, FINAL(a_->v##k), at_, count_);
#define PUT_ONE(k) { const T##k v_ = FINAL(a_->v##k); PUT##k(at_, v_.s0); }
#define START(a) { A* a_ = &a; EACH(START_ONE) }
#define STORE(a, at) { const A* a_ = &a; const I at_ = at; STORED(STORE_ONE) }
#define TAIL(a, at, count) { const A* a_ = &a; const I at_ = at, count_ = count; STORED(TAIL_ONE) }
#ifdef PAIR     // a value and its place: NaN before the best, then the first
#define JOIN(a, b) { \
    const M take_ = BEATS(b.v0, a.v0) | ((TIES(b.v0, a.v0)) & (b.v1 < a.v1)); \
    a.v0 = take_ ? b.v0 : a.v0; a.v1 = take_ ? b.v1 : a.v1; }
#define TIES(b, a) (((b) == (a)) | (((b) != (b)) & ((a) != (a))))
#else
#define JOIN(a, b) { A* a_ = &a; const A* b_ = &b; EACH(JOIN_ONE) }
#endif

// The first lane meets the others: the upper half, a quarter, ..., its neighbour.
#define MEET(a, ONE) { A met; { const A* a_ = &a; A* b_ = &met; EACH(ONE) } JOIN(a, met) }
#define HALF_ONE(k) b_->v##k = (T##k)(a_->v##k.hi, a_->v##k.hi);
#define LAST_ONE(k) b_->v##k = (T##k)(a_->v##k.s1);
#if W == 16
#define QUARTER_ONE(k) b_->v##k = (T##k)(a_->v##k.s4567, a_->v##k.s4567, a_->v##k.s4567, a_->v##k.s4567);
#define EIGHTH_ONE(k) b_->v##k = a_->v##k.s2323232323232323;
#define FOLD(a) MEET(a, HALF_ONE) MEET(a, QUARTER_ONE) MEET(a, EIGHTH_ONE) MEET(a, LAST_ONE)
#elif W == 8
#define QUARTER_ONE(k) b_->v##k = (T##k)(a_->v##k.s23, a_->v##k.s23, a_->v##k.s23, a_->v##k.s23);
#define FOLD(a) MEET(a, HALF_ONE) MEET(a, QUARTER_ONE) MEET(a, LAST_ONE)
#else
#define FOLD(a) MEET(a, HALF_ONE) MEET(a, LAST_ONE)
#endif
#define STORE_FOLDED(a, at) { FOLD(a) const A* a_ = &a; const I at_ = at; STORED(PUT_ONE) }

#define LANES_ONE(k) \
    typedef union { T##k v; E##k lane[W]; } Lanes##k;    /* lanes picked by constants stay in registers */ \
    static inline void put_lanes##k(__global R##k* restrict sum_##k, T##k v, I at, I count) { \
        const Lanes##k lanes = {v}; \
        _Pragma("unroll") for (int j = 0; j < W; j++) \
            if (j < count) PUT##k(at + j, lanes.lane[j]); \
    }
STORED(LANES_ONE)

#if defined(ON_CPU) && defined(ROWS)
#define BLOCK 4096      // elements folded into four vectors before the row's total takes them

__kernel void NAME(PARAMETERS) {
    SCALARS
    I r = (I)get_global_id(0) * unit;
    const I end = LEAST(r + unit, rows), part = get_global_id(1);
    const I q0 = part / iparts * ostep, c0 = part % iparts * istep;
    const I q1 = LEAST(q0 + ostep, outer), c1 = LEAST(c0 + istep, cols);
    for (; r < end; r++) {
        KEPT(r)
        A total;
        START(total)
        for (I q = q0; q < q1; q++) {
            WALK(q)
            for (I at = c0; at < c1;) {
                const I stop = LEAST(at + BLOCK, c1);
                A acc0, acc1, acc2, acc3;
                START(acc0) START(acc1) START(acc2) START(acc3)
                for (; at + 4 * W <= stop; at += 4 * W) {
                    STEP(acc0, at, q * cols + at)
                    STEP(acc1, at + W, q * cols + at + W)
                    STEP(acc2, at + 2 * W, q * cols + at + 2 * W)
                    STEP(acc3, at + 3 * W, q * cols + at + 3 * W)
                }
                for (; at + W <= stop; at += W) STEP(acc0, at, q * cols + at)
                if (at < stop) {
                    PART(acc1, at, q * cols + at, (int)(stop - at))
                    at = stop;
                }
                JOIN(acc0, acc1) JOIN(acc2, acc3) JOIN(acc0, acc2) JOIN(total, acc0)
            }
        }
        STORE_FOLDED(total, r * parts + part)
    }
}

#elif defined(ON_CPU)

__kernel void NAME(PARAMETERS) {
    SCALARS
    I r = (I)get_global_id(1) * unit, at = (I)get_global_id(0) * 8 * W;
    const I end = LEAST(r + unit, rows), part = get_global_id(2);
    const I f0 = part * ostep, f1 = LEAST(f0 + ostep, outer);
    for (; r < end; r++) {
        KEPT(r)
        const I place = (r * parts + part) * cols;
        if (at + 8 * W <= cols) {
            A acc0, acc1, acc2, acc3, acc4, acc5, acc6, acc7;
            START(acc0) START(acc1) START(acc2) START(acc3) START(acc4) START(acc5) START(acc6) START(acc7)
            for (I f = f0; f < f1; f++) {
                WALK(f)
                STEP(acc0, at, f) STEP(acc1, at + W, f) STEP(acc2, at + 2 * W, f) STEP(acc3, at + 3 * W, f)
                STEP(acc4, at + 4 * W, f) STEP(acc5, at + 5 * W, f) STEP(acc6, at + 6 * W, f) STEP(acc7, at + 7 * W, f)
            }
            STORE(acc0, place + at)
            STORE(acc1, place + at + W)
            STORE(acc2, place + at + 2 * W)
            STORE(acc3, place + at + 3 * W)
            STORE(acc4, place + at + 4 * W)
            STORE(acc5, place + at + 5 * W)
            STORE(acc6, place + at + 6 * W)
            STORE(acc7, place + at + 7 * W)
            continue;
        }
        for (I c0 = at; c0 < cols; c0 += W) {
            A acc;
            START(acc)
            if (c0 + W <= cols) {
                for (I f = f0; f < f1; f++) { WALK(f) STEP(acc, c0, f) }
                STORE(acc, place + c0)
            } else {
                for (I f = f0; f < f1; f++) { WALK(f) PART(acc, c0, f, (int)(cols - c0)) }
                TAIL(acc, place + c0, cols - c0)
            }
        }
    }
}

#else
// Neighbours whose number `own` is below the width take over from those that lie so far ahead, down to a width of `to`.
#define TREE(own, from, to) \
    tree[lid] = total; \
    for (int width = (from) / 2; width >= (to); width /= 2) { \
        barrier(CLK_LOCAL_MEM_FENCE); \
        if ((own) < width) { \
            A other = tree[lid + width]; \
            JOIN(total, other) \
            tree[lid] = total; \
        } \
    }

#if OUTS > 2    // few registers are left
#define SUM0 total
#define SUM1 total
#define SUM2 total
#define START_SUMS
#define JOIN_SUMS
#else
#define SUM0 acc0
#define SUM1 acc1
#define SUM2 acc2
#define START_SUMS A acc0, acc1, acc2; START(acc0) START(acc1) START(acc2)
#define JOIN_SUMS JOIN(total, acc0) JOIN(acc1, acc2) JOIN(total, acc1)
#endif

__kernel __attribute__((reqd_work_group_size(WG, 1, 1))) void NAME(PARAMETERS) {
    SCALARS
    __local A tree[WG];
    const int lid = get_local_id(0);
    A total;
    START(total)
    START_SUMS      // so that four loads are on their way at a time
#ifdef ROWS
    const int lane = lid % (int)unit, per = WG / (int)unit;
    const I groups = (rows + per - 1) / per, g = get_group_id(0), part = g / groups;
    const I r = (g - part * groups) * per + lid / (int)unit;
    const I q0 = part / iparts * ostep, c0 = part % iparts * istep;
    const I q1 = LEAST(q0 + ostep, outer), c1 = LEAST(c0 + istep, cols);
    if (r < rows) {
        KEPT(r)
#if WALK_RANK == 0
        WALK(0)
        const I span = unit * W;
        I at = c0 + lane * W;
        for (; at + 3 * span + W <= c1; at += 4 * span) {
            STEP(SUM0, at, at) STEP(SUM1, at + span, at + span)
            STEP(SUM2, at + 2 * span, at + 2 * span) STEP(total, at + 3 * span, at + 3 * span)
        }
        for (; at + W <= c1; at += span) STEP(SUM0, at, at)
        if (at < c1) PART(SUM1, at, at, (int)(c1 - at))
#else
        const I wide = (c1 - c0 + W - 1) / W, stop = q1 * wide, down = unit / wide, right = unit - down * wide;
        I j = q0 * wide + lane, q = q0 + lane / wide, x = lane % wide;
#define NEXT j += unit; q += down; x += right; if (x >= wide) { x -= wide; q++; }
#define WHOLE(acc) { const I at = c0 + x * W; WALK(q) STEP(acc, at, q * cols + at) } NEXT
        if ((c1 - c0) % W == 0)
            while (j + 3 * unit < stop) { WHOLE(SUM0) WHOLE(SUM1) WHOLE(SUM2) WHOLE(total) }
        while (j < stop) {
            const I at = c0 + x * W;
            WALK(q)
            if (at + W <= c1) STEP(total, at, q * cols + at)
            else PART(total, at, q * cols + at, (int)(c1 - at))
            NEXT
        }
#endif
    }
    JOIN_SUMS
    TREE(lane, (int)unit, 1)
    if (lane == 0 && r < rows) STORE_FOLDED(total, r * parts + part)
#else
    const int across = (int)unit, x = lid % across, y = lid / across, step = WG / across;
    const I blocks = (cols + across * W - 1) / (across * W), g = get_group_id(0);
    const I q = g / blocks, part = q / rows, r = q - part * rows, at = ((g - q * blocks) * across + x) * W;
    const I f1 = LEAST((part + 1) * ostep, outer);
    I f = part * ostep + y;
    if (at < cols) {
        KEPT(r)
        if (at + W <= cols) {
            for (; f + 3 * step < f1; f += 4 * step) {
                { WALK(f) STEP(SUM0, at, f) }
                { WALK(f + step) STEP(SUM1, at, f + step) }
                { WALK(f + 2 * step) STEP(SUM2, at, f + 2 * step) }
                { WALK(f + 3 * step) STEP(total, at, f + 3 * step) }
            }
            for (; f < f1; f += step) { WALK(f) STEP(total, at, f) }
        } else {
            for (; f < f1; f += step) { WALK(f) PART(total, at, f, (int)(cols - at)) }
        }
    }
    JOIN_SUMS
    TREE(lid, WG, across)
    if (y == 0 && at < cols) {
        const I place = (r * parts + part) * cols + at;
        if (at + W <= cols) STORE(total, place)
        else TAIL(total, place, cols - at)
    }
#endif
}
#endif
