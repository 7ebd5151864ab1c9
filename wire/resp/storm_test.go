package resp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/store/storetest"
	"github.com/skepkv/skep/wire/auth"
)

// fixedClient reads replies as LMCache's native client does: so many bytes as the reply that it hopes for has, and never
// more, whatever it got. It says that it is out of step where what it read can be no reply of that length.
type fixedClient struct{ net.Conn }

var errOutOfStep = errors.New("out of step")

func (c fixedClient) ask(n int, args ...string) (string, error) {
	if _, err := c.Write(encode(args...)); err != nil {
		return "", err
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c, b)
	return string(b), err
}

func (c fixedClient) set(key string, value []byte) error {
	r, err := c.ask(5, "SET", key, string(value))
	if err == nil && r != "+OK\r\n" {
		return fmt.Errorf("%w: %q in answer to SET", errOutOfStep, r)
	}
	return err
}

func (c fixedClient) exists(key string) (bool, error) {
	r, err := c.ask(4, "EXISTS", key)
	if err == nil && r != ":0\r\n" && r != ":1\r\n" {
		return false, fmt.Errorf("%w: %q in answer to EXISTS", errOutOfStep, r)
	}
	return r == ":1\r\n", err
}

// get gives a value, nil where the header is not the one of a value of that size.
func (c fixedClient) get(key string, size int) ([]byte, error) {
	header := fmt.Sprintf("$%d\r\n", size)
	r, err := c.ask(len(header), "GET", key)
	if err != nil {
		return nil, err
	}
	if r != header {
		if miss := fmt.Sprintf("$-%0*d\r\n", len(header)-4, 1); r != miss {
			return nil, fmt.Errorf("%w: %q in answer to GET", errOutOfStep, r)
		}
		return nil, nil
	}
	value := make([]byte, size+2)
	_, err = io.ReadFull(c, value)
	return value[:size], err
}

// named is a value that names its key all along.
func named(key string, size int) []byte {
	line := fmt.Sprintf("%-31s\n", key)
	return bytes.Repeat([]byte(line), size/len(line)+1)[:size]
}

// restarting is a server at one place that is ended and begun anew, in front of one store.
type restarting struct {
	t    *testing.T
	st   skep.Store
	o    Options
	mu   sync.Mutex
	now  *Server
	addr string
	over chan error
}

func (r *restarting) begin() {
	s, err := New(r.st, r.o)
	require.NoError(r.t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now, r.addr, r.over = s, l.Addr().String(), make(chan error, 1)
	go func() { r.over <- s.ServeLockstep(l) }()
}

// end cuts what is under way, or lets it come to its end.
func (r *restarting) end(cut bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if cut {
		cancel()
	}
	_ = r.now.Shutdown(ctx)
	require.NoError(r.t, <-r.over)
}

func (r *restarting) dial() (fixedClient, error) {
	r.mu.Lock()
	addr := r.addr
	r.mu.Unlock()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return fixedClient{}, err
	}
	return fixedClient{c}, c.SetDeadline(time.Now().Add(5 * time.Minute))
}

// Eight workers that never find their place again are given nothing but what they asked for, by a server that has too
// little memory, declines, evicts, loses what it promised, and is ended and begun anew.
func TestLockstepStorm(t *testing.T) {
	t.Parallel()
	for name, sizes := range map[string][]int{"one length": {20_000, 90_000, 33_333}, "several": {100, 20_000, 600_000, pieceBytes + 300_000}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storm(t, sizes)
		})
	}
}

func storm(t *testing.T, sizes []int) {
	const workers, keys, restarts = 8, 48, 6
	calls := 600
	if testing.Short() {
		calls = 150
	}
	d, err := auth.New(nil, nil, nil)
	require.NoError(t, err)
	capacity := int64(0)
	for i := range keys {
		capacity += int64(sizes[i%len(sizes)])
	}
	mem := memstore.New(memstore.Options{CapacityBytes: capacity / 2})
	defer mem.Close()
	var n atomic.Int64
	st := &wrapped{Store: mem, put: func(r *skep.PutRequest) ([]skep.PutResult, error) {
		if n.Add(1)%13 == 0 {
			return []skep.PutResult{{Outcome: skep.Declined, Reason: skep.Full}}, nil
		}
		return nil, nil
	}}
	var counted [3]int64
	r := &restarting{t: t, st: st, o: Options{Auth: d, ReceiveBytes: 2 * pieceBytes, SendBytes: MinSendBytes,
		ShedAfter: time.Millisecond, lockstepWait: 2 * time.Millisecond, ExistsLease: -1}}
	tally := func() {
		for i, c := range []*atomic.Int64{&r.now.stats.declined, &r.now.stats.padded, &r.now.stats.hungUp} {
			counted[i] += c.Load()
		}
	}
	r.begin()
	seed := rand.Uint64()
	if s := os.Getenv("SKEP_SEED"); s != "" {
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("SKEP_SEED=%d", seed)
	var done, hits, ended atomic.Int64
	crew := storetest.NewCrew(t)
	for w := range workers {
		crew.Go(func(t testing.TB) {
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			var c fixedClient
			defer func() {
				if c.Conn != nil {
					c.Close()
				}
			}()
			for range calls {
				done.Add(1)
				if c.Conn == nil {
					var err error
					if c, err = r.dial(); err != nil {
						continue // between two servers
					}
				}
				i := random.IntN(keys)
				key, size := fmt.Sprintf("key %d of %d", i, sizes[i%len(sizes)]), sizes[i%len(sizes)]
				err := func() error {
					if random.IntN(3) == 0 {
						return c.set(key, named(key, size))
					}
					if there, err := c.exists(key); err != nil || !there {
						return err
					}
					if random.IntN(4) == 0 { // as another worker may, meanwhile
						if _, err := c.ask(4, "DEL", key); err != nil {
							return err
						}
					}
					got, err := c.get(key, size)
					if err == nil && got != nil {
						hits.Add(1)
						assert.True(t, bytes.Equal(named(key, size), got), "%s was given %.40q", key, got)
					}
					return err
				}()
				assert.NotErrorIs(t, err, errOutOfStep, key)
				if err != nil {
					ended.Add(1)
					c.Close()
					c.Conn = nil
				}
			}
		})
	}
	for i := range restarts {
		storetest.Eventually(t, "calls", func() bool { return done.Load() > int64((i+1)*workers*calls/(restarts+2)) })
		r.end(i%2 == 0)
		tally()
		r.begin()
	}
	crew.Wait()
	r.end(false)
	tally()
	t.Logf("%d hits, %d connections ended; declined, nil, hung up: %v", hits.Load(), ended.Load(), counted)
	assert.NotZero(t, hits.Load())
	assert.NotZero(t, ended.Load())
	assert.NotZero(t, counted[0], "declined")
	if digits(int64(sizes[0])) == digits(int64(sizes[len(sizes)-1])) {
		assert.NotZero(t, counted[1], "nil")
	}
}
