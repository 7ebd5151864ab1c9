package hostile

import (
	"context"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
)

// Clients that do their worst harm nobody else, and leave nothing.
//
// Alone: its oracles count what the whole process has.
func TestHostileClients(t *testing.T) {
	st := memstore.New(memstore.Options{CapacityBytes: 256 << 20})
	Run(t, st, Options{})
	require.NoError(t, st.Close())
}

// acts is a player a test makes.
type acts func(ctx context.Context, t *Target, r *rand.Rand) error

func (acts) Name() string { return "acts" }
func (f acts) Play(ctx context.Context, t *Target, r *rand.Rand) error {
	return f(ctx, t, r)
}

// flipping is a store that turns a bit of what it restores, once in a while.
type flipping struct{ skep.Store }

func (f flipping) Restore(ctx context.Context, r *skep.RestoreRequest) (skep.Session, error) {
	s, err := f.Store.Restore(ctx, r)
	return flippingSession{s}, err
}

type flippingSession struct{ skep.Session }

func (s flippingSession) Next(ctx context.Context, into []skep.Chunk) (int, error) {
	n, err := s.Session.Next(ctx, into)
	for i := range into[:n] {
		if c := &into[i]; c.Err == nil && c.Bytes > 300 {
			d := append([]byte(nil), c.Data[0]...)
			d[len(d)-1] ^= 1
			c.Data[0] = d
		}
	}
	return n, err
}

// Each oracle, and the books, notice what they are there for.
//
// Alone: endsWithin is the package's.
func TestOraclesNotice(t *testing.T) {
	defer func(d time.Duration) { endsWithin = d }(endsWithin)
	endsWithin = 300 * time.Millisecond
	var mu sync.Mutex
	var kept []any
	keep := func(x any) {
		mu.Lock()
		defer mu.Unlock()
		if len(kept) < 50 {
			kept = append(kept, x)
		}
	}
	nothing := acts(func(ctx context.Context, _ *Target, _ *rand.Rand) error {
		pause(ctx, 50*time.Millisecond)
		return nil
	})
	for name, c := range map[string]struct {
		want   string
		player acts
		store  func(skep.Store) skep.Store
	}{
		"nothing":     {player: nothing},
		"wrong bytes": {want: "wrong bytes", player: nothing, store: func(st skep.Store) skep.Store { return flipping{st} }},
		"a leak": {want: ErrLeak.Error(), player: func(ctx context.Context, t *Target, r *rand.Rand) error {
			c, err := t.Dial(ctx, Resp, r)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = c.Write(append(Command("AUTH", []byte(TokenHonest)), Command("MGET", respKeys(r, 100)...)...))
			var w Watcher
			b := make([]byte, 64<<10)
			for err == nil {
				var n int
				n, err = c.Read(b)
				_, _ = w.Write(b[:n])
			}
			return w.Err()
		}},
		"a connection that stays": {want: "nothing is left behind", player: func(ctx context.Context, t *Target, _ *rand.Rand) error {
			at := t.Server.Addrs[Resp][0]
			c, err := net.Dial(at.Network(), at.String())
			keep(c)
			if err == nil {
				_, err = c.Write(Command("AUTH", []byte(TokenHostile)))
			}
			pause(ctx, time.Second)
			return err
		}},
		"memory that stays": {want: "bytes of the live heap", player: func(ctx context.Context, _ *Target, _ *rand.Rand) error {
			keep(make([]byte, 16<<20))
			pause(ctx, 50*time.Millisecond)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			mem := memstore.New(memstore.Options{CapacityBytes: 256 << 20})
			var st skep.Store = mem
			if c.store != nil {
				st = c.store(mem)
			}
			dir, err := os.MkdirTemp("", "skep-hostile")
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			s, err := Serve(st, dir)
			require.NoError(t, err)
			_, err = play(s, Options{Players: []Player{c.player}, Workers: 4, For: 500 * time.Millisecond, Seed: 1})
			if c.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, c.want)
			}
			for _, x := range kept {
				if c, ok := x.(net.Conn); ok {
					c.Close()
				}
			}
			kept = nil
			_ = s.Close()
			require.NoError(t, mem.Close())
		})
	}
}
