// ptx.cl: the NVIDIA instructions behind mma.cl and wgmma.cl, one macro each. Nothing else here knows PTX.
//
// A port to other matrix units replaces this file: cp.async (copies that complete later), ldmatrix and mma.sync are
// plain inline PTX; lines that start with "// @@" need the target sm_90a and are activated in the built program
// (edit.py).
// Local pointers are 32-bit shared-memory addresses (LOCAL). Sources: PTX ISA 8.3, sections 9.7.9 to 9.7.15.
#ifndef PTX
#define PTX
#define LOCAL(p) ((uint)(size_t)(p))
#define SHARED(name, bytes) __local __attribute__((aligned(1024))) uchar name[bytes]
// copies of 16 or 4 bytes from global to shared memory, of which `n` are read and the rest become zero
#define COPY16(to, from, n) \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"((ulong)(from)), "r"(n) : "memory")
#define COPY4(to, from, n) \
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"((ulong)(from)), "r"(n) : "memory")
#define COPY_GROUP() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPY_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
// four 8x8 matrices of 16-bit elements (rows of 16 bytes), one row address per lane
#define LOAD_MATRIX(r, at) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" \
                 : "=r"((r)[0]), "=r"((r)[1]), "=r"((r)[2]), "=r"((r)[3]) : "r"(at) : "memory")
#define LOAD_MATRIX_T(r, at) \
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" \
                 : "=r"((r)[0]), "=r"((r)[1]), "=r"((r)[2]), "=r"((r)[3]) : "r"(at) : "memory")
#define LOAD_WORD(r, at) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(at) : "memory")
#define LOAD_PAIR(x, y, at) asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(at) : "memory")
#define LOAD_FOUR(r, at) \
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" \
                 : "=r"((r).x), "=r"((r).y), "=r"((r).z), "=r"((r).w) : "r"(at) : "memory")
#define STORE_FOUR(at, v) \
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"((v).x), "r"((v).y), "r"((v).z), "r"((v).w) \
                 : "memory")
// an 8x8 matrix of 16-bit elements transposed across the warp
#define TRANSPOSE(r) asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(r))
// two floats rounded to 16 bits; NARROW says which (common.cl)
#define PACK_NARROW(r, low, high) JOIN(PACK_, NARROW)(r, low, high)
#define PACK_HALF(r, low, high) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low))
#define PACK_BFLOAT(r, low, high) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low))
#define SHUFFLE_XOR(r, mask) asm volatile("shfl.sync.bfly.b32 %0, %0, %1, 31, -1;" : "+r"(r) : "n"(mask))
// c (16 x 8, float) += a (16 x 16 bytes of k) b
#define MMA(shape, type, c, a, b) \
    asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 " \
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
                 : "+f"((c)[0]), "+f"((c)[1]), "+f"((c)[2]), "+f"((c)[3]) \
                 : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "r"((b)[0]), "r"((b)[1]))
static inline float EXP2(float x) {   // 2^x; what is below 2^-126 becomes zero
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
// barriers in shared memory: `n` arrivals and the announced bytes complete a phase
#define BAR_INIT(at, n) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n) : "memory")
#define BAR_EXPECT(at, bytes) \
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory")
#define BAR_ARRIVE(at) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory")
#define BAR_WAIT(at, phase) do { \
    uint done_; \
    do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" \
                    : "=r"(done_) : "r"(at), "r"(phase) : "memory"); \
    while (!done_); \
} while (0)
#define MULTIPLIERS_MEET() asm volatile("bar.sync 1, 256;" ::: "memory")   // of wgmma.cl
#define FENCE_ASYNC() asm volatile("fence.proxy.async.shared::cta;" ::: "memory")    // of shared memory alone
// bulk copies of a box at (x, y, z, w), described by 128 bytes in global memory (tensormap.py)
#define MAP_READY(map) \
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"((ulong)(map)) : "memory")
#define MAP_WRITTEN() asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory")
#define COPY_BOX(to, map, x, y, z, w, bar) \
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes " \
                 "[%0], [%1, {%2,%3,%4,%5}], [%6];" \
                 ::"r"(to), "l"((ulong)(map)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory")
// warpgroup products; the macros with accumulators are written by ops/nvidia/wgmma.py
#define WG_FENCE() asm volatile("// @@wgmma.fence.sync.aligned;" ::: "memory")
#define WG_COMMIT() asm volatile("// @@wgmma.commit_group.sync.aligned;" ::: "memory")
#define WG_WAIT(n) asm volatile("// @@wgmma.wait_group.sync.aligned " #n ";" ::: "memory")
#define GROUPS_(n) asm volatile("// @@groups " #n)
#define GROUPS(n) GROUPS_(n)    // per multiprocessor, for which registers have to suffice
#define REGISTERS_DOWN(n) asm volatile("// @@setmaxnreg.dec.sync.aligned.u32 " #n ";")
#define REGISTERS_UP(n) asm volatile("// @@setmaxnreg.inc.sync.aligned.u32 " #n ";")
// keeps the compiler from moving the use of a register across the waits above
#define PIN(r) asm volatile("" : "+f"(r)::"memory")
#define PIN_WORD(r) asm volatile("" : "+r"(r)::"memory")
#endif
