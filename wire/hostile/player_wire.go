package hostile

import (
	"bytes"
	"context"
	"hash/crc32"
	"math/rand/v2"
	"strconv"
	"sync/atomic"

	"github.com/skepkv/skep/wire/frames"
)

// wirePlayer speaks the binary protocol, right and wrong: any frames in any order, mutated with checksums that are
// right again or not, at any pace, ended anywhere.
type wirePlayer struct{}

// Name implements Player.
func (wirePlayer) Name() string { return "wire" }

// Play implements Player.
func (wirePlayer) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	c, err := t.Dial(ctx, Wire, r)
	if err != nil {
		return nil // refused
	}
	talk := wireTalk(r, t.aSpace(ctx, r))
	if r.IntN(3) > 0 {
		talk = Mutate(r, talk)
		if r.IntN(4) > 0 {
			for i := range talk {
				talk[i] = sign(r, talk[i])
			}
		}
	}
	return Deliver(ctx, r, c, bytes.Join(talk, nil))
}

func wireToken(r *rand.Rand) string {
	return []string{TokenHostile, TokenHostile, TokenHostile, TokenHostile, TokenReader, TokenWrong, ""}[r.IntN(7)]
}

// wireTalk is a conversation about a namespace that mostly begins with a hello.
func wireTalk(r *rand.Rand, ns uint32) [][]byte {
	var talk [][]byte
	if r.IntN(16) > 0 {
		talk = append(talk, hello(wireToken(r), byte(r.IntN(4))))
	}
	n := 1 + r.IntN(16)
	if r.IntN(8) == 0 {
		n = 300
	}
	room := 3 << 20
	for range n {
		f := wireFrame(r, uint64(1+r.IntN(24)), ns)
		if room -= len(f); room < 0 {
			break
		}
		talk = append(talk, f)
	}
	return talk
}

// wireFrame is one of all there are. Its fields are mostly what they should be.
func wireFrame(r *rand.Rand, call uint64, ns uint32) []byte {
	num := func(n int) uint64 { return uint64(r.IntN(n)) }
	some := r.IntN(40)
	if r.IntN(16) == 0 {
		some = r.IntN(40_000)
	}
	f := func(t frames.Type, b body) []byte { return frame(t, call, b, nil) }
	switch r.IntN(35) {
	case 0, 1:
		return f(frames.TypeOpenNamespace, openSpace(r, "n"+strconv.Itoa(r.IntN(3))))
	case 2:
		return f(frames.TypeNamespaces, nil)
	case 3, 4:
		return f(frames.TypeLookup, body{}.scope(ns).i64(int64(num(3))*3e8-1).flag(true).flag(false).keys(0, some))
	case 5:
		return f(frames.TypeRenew, body{}.u64(num(60)).i64(5e8))
	case 6:
		return f(frames.TypeRelease, body{}.u64(num(60)))
	case 7:
		return f(frames.TypeWant, body{}.scope(ns).i64(int64(num(1<<20))).keys(0, some))
	case 8, 9, 10, 11:
		b, payload := putOf(r, ns, []int{0, 1, 1024, 1024, 4096, 70_000}[r.IntN(6)], 0)
		return frame([]frames.Type{frames.TypePut, frames.TypePut, frames.TypePutEach}[r.IntN(3)], call, b, payload)
	case 12:
		return f(frames.TypeBegin,
			body{}.scope(ns).u8(0).i64(0).key(r.IntN(64)).bytes(nil).i64(0).u8(0).i64(int64(num(2e9))).u32(1).text("kv").i64(int64(num(1<<20))))
	case 13:
		p := make([]byte, r.IntN(9000))
		return frame(frames.TypeWrite, call,
			body{}.u64(num(4)).text("kv").i64(int64(num(1<<20))).u8(1).u64(uint64(crc32.ChecksumIEEE(p))), p)
	case 14:
		return f(frames.TypeCommit, body{}.u64(num(4)).u8(uint8(num(2))))
	case 15:
		return f(frames.TypeAbort, body{}.u64(num(4)))
	case 16:
		return f(frames.TypeFlush, nil)
	case 17, 18, 19, 20:
		aims := make([]aim, 1+r.IntN(3))
		if r.IntN(8) == 0 {
			aims[0] = aim{1, 0, 4096, 4096} // without memory
		}
		return f(frames.TypeRestore, restoreOf(r, ns, num(1<<20), false, min(some, 2000), aims...))
	case 21, 22:
		return f(frames.TypeCredit, body{}.u64(num(25), num(1<<20)))
	case 23:
		return f(frames.TypeClaim, body{}.u64(num(25)).i64(int64(num(3)), 0, int64(num(50))))
	case 24:
		return f(frames.TypeReprioritise, body{}.u64(num(25)).i64(int64(num(3)), 1, 0))
	case 25:
		return f([]frames.Type{frames.TypeStop, frames.TypeDirection}[r.IntN(2)],
			body{}.u64(num(25)).i64(int64(num(3))-1))
	case 26:
		return f([]frames.Type{frames.TypeEnd, frames.TypeCancel, frames.TypeDetach}[r.IntN(3)], body{}.u64(num(25)))
	case 27:
		return f(frames.TypeHint, body{}.scope(ns).i64(1e9, 1e9, 3, 1e9).text("p").flag(false).keys(0, some))
	case 28:
		return f(frames.TypeDelete, body{}.scope(ns).keys(r.IntN(64), some))
	case 29:
		return f(frames.TypePurge, body{}.text([]string{"", HostileTenant,
			HonestTenant}[r.IntN(3)]).text("").u32(ns*uint32(num(2))).u8(0))
	case 30:
		return f([]frames.Type{frames.TypeStats, frames.TypePing, frames.TypeGoodbye}[r.IntN(3)], nil)
	case 31:
		return f(frames.TypeAdmin, body{}.text("jobs").bytes([]byte("{}")))
	case 32:
		return f(frames.TypeEvents, body{}.u64(0, num(9)).flag(num(2) == 1).u64(num(5000)))
	case 33:
		n := r.IntN(4) * r.IntN(500)
		b := body{}.scope(ns).i64(int64(num(3))*3e8 - 1).flag(true).flag(false).u32(uint32(n + r.IntN(20)/19)) // seldom one more than there is
		for i := range n {
			b = b.keys(i, r.IntN(16)) // seldom none
		}
		return f(frames.TypeLookupRuns, b)
	}
	return f(frames.Type(r.IntN(256)), make(body, r.IntN(100)))
}

// wireCutter ends one conversation at every byte in turn.
type wireCutter struct{}

// Name implements Player.
func (wireCutter) Name() string { return "wire-cut" }

var wireCutAt atomic.Int64

// Play implements Player.
func (wireCutter) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	one, ns := rand.New(rand.NewPCG(1, 1)), t.own(ctx)[0]
	b, payload := putOf(one, ns, 5000, 0)
	talk := bytes.Join([][]byte{
		hello(TokenHostile, 7), frame(frames.TypeOpenNamespace, 1, body{}.text(HostileTenant).text("cut").text("").u8(0,
			0, 0).i64(0, 0, 0, 1, 0).u8(0).i64(0).flag(false), nil),
		frame(frames.TypeEvents, 2, body{}.u64(0, 0).flag(true).u64(5000), nil), frame(frames.TypePut, 3, b, payload),
		frame(frames.TypeLookup, 4, body{}.scope(ns).i64(3e8).flag(true).flag(false).keys(0, 20),
			nil), frame(frames.TypeRestore, 5, restoreOf(one, ns, 4096, false, 20, aim{}), nil),
		frame(frames.TypeBegin, 6,
			body{}.scope(ns).u8(0).i64(0).key(3).bytes(nil).i64(0).u8(0).i64(0).u32(1).text("kv").i64(4096), nil),
		frame(frames.TypeCredit, 0, body{}.u64(5, 1<<20), nil), frame(frames.TypeEnd, 7, body{}.u64(5), nil),
	}, nil)
	for range 8 {
		c, err := t.Dial(ctx, Wire, r)
		if err != nil {
			return nil
		}
		// A step that shares nothing with the length, so that a short run meets all parts.
		if err := Deliver(ctx, r, c, talk[:wireCutAt.Add(1013)%int64(len(talk)+1)]); err != nil {
			return err
		}
	}
	return nil
}

// wireCrowd is many connections at once that each hold what they can get: restores without credit, streams, open blocks,
// leases, puts that stop half way.
type wireCrowd struct{}

// Name implements Player.
func (wireCrowd) Name() string { return "wire-crowd" }

// Play implements Player.
func (wireCrowd) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	kind, ns := r.IntN(6), t.aSpace(ctx, r)
	var hold []interface{ Close() error }
	defer func() {
		for _, c := range hold {
			_ = c.Close()
		}
	}()
	for range 1 + r.IntN(40) {
		c, err := t.Dial(ctx, Wire, r)
		if err != nil {
			break
		}
		hold = append(hold, c)
		deadline, _ := ctx.Deadline()
		_ = c.SetDeadline(deadline)
		if _, err := c.Write(hello(TokenHostile, byte(r.Uint32()))); err != nil {
			continue
		}
		for call := range uint64(1 + r.IntN(80)) {
			var f []byte
			switch call++; kind {
			case 0:
				f = frame(frames.TypeRestore, call, restoreOf(r, ns, 1, false, 30, aim{}), nil)
			case 1:
				f = frame(frames.TypeEvents, call, body{}.u64(0, 0).flag(true).u64(1), nil)
			case 2:
				f = frame(frames.TypeBegin, call,
					body{}.scope(ns).u8(0).i64(0).key(int(call)).bytes(nil).i64(0).u8(0).i64(1e9).u32(1).text("kv").i64(1<<16), nil)
			case 3:
				f = frame(frames.TypeLookup, call, body{}.scope(ns).i64(5e8).flag(false).flag(false).keys(0, 30), nil)
			case 4:
				f = frame(frames.TypeFlush, call, nil, nil)
			default:
				b, payload := putOf(r, ns, 64<<10, 0)
				f = frame(frames.TypePut, call, b, payload)
				f = f[:len(f)-r.IntN(len(payload))]
			}
			if _, err := c.Write(f); err != nil || kind == 5 {
				break
			}
		}
	}
	if r.IntN(2) == 0 {
		pause(ctx, timeUpTo(r, 500))
	}
	return nil
}
