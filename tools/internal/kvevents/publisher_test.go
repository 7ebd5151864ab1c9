package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// A router hears what is stored and what goes, in the topic of the namespace, in a sequence without a gap.
func TestARouterHearsWhatIsStoredAndGoes(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "a", "b@c")
	w := start(t, st, Options{})
	c := w.subscriber("kv@n1@")
	begun := c.replay0(w)
	put(t, n[0], 7)
	first := c.hear()
	require.Equal(t, "kv@n1@mine/a", first.topic)
	require.Equal(t, begun, first.seq)
	require.Nil(t, first.rank)
	require.Equal(t, []uint64{7}, first.numbers(0))
	delete(first.events[0], "block_hashes")
	require.Equal(t, map[string]any{"type": "BlockStored", "parent_block_hash": nil, "token_ids": []any{},
		"block_size": int64(16), "lora_id": nil, "lora_name": nil, "medium": "STORAGE"}, first.events[0])

	put(t, n[1], 1<<63+5)
	second := c.hear()
	require.Equal(t, "kv@n1@mine/b%40c", second.topic, "@ separates a topic's parts")
	require.Equal(t, []uint64{1<<63 + 5}, second.numbers(0))
	require.Equal(t, first.seq+1, second.seq, "one sequence for all topics")

	_, err := n[0].Delete(t.Context(), key(7))
	require.NoError(t, err)
	gone := c.hear()
	require.Equal(t, []string{"BlockRemoved"}, gone.kinds())
	require.Equal(t, []uint64{7}, gone.numbers(0))
	require.Equal(t, "STORAGE", gone.events[0]["medium"])
	require.Equal(t, second.seq+1, gone.seq)
}

// replay0 waits until the first snapshot has begun, and gives the number that comes after what is there.
func (c *client) replay0(w *world) (next uint64) {
	c.Helper()
	require.Eventually(c, func() bool { return w.p.count.snapshots.Load() > 0 }, patience, time.Millisecond)
	for _, h := range dial(c.T, w.again, "DEALER").replay(0) {
		next = h.seq + 1
	}
	c.begun = next
	return next
}

// looked is a context that calls f when it is asked for its end.
type looked struct {
	context.Context
	f func()
}

func (l looked) Done() <-chan struct{} {
	l.f()
	return l.Context.Done()
}

// A subscriber has its place in the ring before anything that it says is read: so whoever knows that a subscription was
// taken hears all that comes from then on.
func TestASubscriberHasAPlaceBeforeItSubscribes(t *testing.T) {
	t.Parallel()
	p := &Publisher{ring: newRing(4, 1<<20, 1)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	places := make(chan int, 10)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		ended <- p.subscriber(looked{ctx, func() { // when the goroutine that reads is about to begin
			p.ring.mu.Lock()
			defer p.ring.mu.Unlock()
			places <- len(p.ring.at)
		}}, c)
	}()
	dial(t, l.Addr().String(), "SUB")
	require.Equal(t, 1, <-places)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// A subscriber of one namespace hears of that one. Subscriptions come as commands and, in ZMTP 3.0, as messages; they
// are taken back as often as they were made.
func TestSubscriptions(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "a", "b")
	w := start(t, st, Options{})
	old := dial(t, w.pub, "SUB")
	require.NoError(t, old.p.send(0, []byte("\x01kv@n1@mine/b")))
	require.NoError(t, old.p.send(0, []byte("\x01kv@n1@mine/b")))
	require.NoError(t, old.p.send(0, []byte("\x00kv@n1@mine/b")))
	require.Equal(t, "what the PONG repeats", old.ping("what the PONG repeats"))
	c := w.subscriber("")
	c.command("SUBSCRIBE", "kv@n1@mine/a")
	c.command("CANCEL", "")
	c.ping("")
	c.begun = old.replay0(w)
	put(t, n[0], 1)
	require.Equal(t, []uint64{1}, c.hear().numbers(0))
	put(t, n[1], 2)
	require.Equal(t, []uint64{2}, old.hear().numbers(0))
	put(t, n[0], 3)
	third := c.hear()
	require.Equal(t, []uint64{3}, third.numbers(0))
	require.Equal(t, "kv@n1@mine/a", third.topic)
	require.EqualValues(t, 2, metric(t, w.p, "skep_events_zmq_subscribers"))
	sent := 3 + c.passed + old.passed
	require.Eventually(t, func() bool { return w.p.count.sent.Load() == sent }, patience, time.Millisecond)
}

// metric is a figure of the publisher's, as Prometheus sees it.
func metric(t *testing.T, p *Publisher, name string) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	require.NoError(t, reg.Register(p))
	all, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.Fail(t, "there is no such metric", name)
	return 0
}

// Whoever comes later asks for everything, and gets a picture of what is stored: first that nothing is there, then what
// is. Who missed some asks from there.
func TestAReplay(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "a", "b")
	put(t, n[0], 1, 2)
	put(t, n[1], 3)
	w := start(t, st, Options{})
	require.Eventually(t, func() bool { return w.p.count.stored.Load() == 3 }, patience, time.Millisecond)
	put(t, n[0], 4)
	_, err := n[1].Delete(t.Context(), key(3))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.p.count.removed.Load() == 1 }, patience, time.Millisecond)

	c := dial(t, w.again, "REQ")
	all := c.replay(0)
	require.Equal(t, []string{"AllBlocksCleared"}, all[0].kinds())
	require.Equal(t, []string{"AllBlocksCleared"}, all[1].kinds())
	require.NotEqual(t, all[0].topic, all[1].topic)
	require.True(t, sameBlocks(picture(all), map[string][]uint64{"kv@n1@mine/a": {1, 2, 4}}), "%v", picture(all))
	for i := range all {
		require.Equal(t, all[0].seq+uint64(i), all[i].seq)
	}
	last := all[len(all)-1].seq
	require.Equal(t, all[len(all)-1:], c.replay(last))
	require.Empty(t, c.replay(last+1), "that is what comes next")
	require.Equal(t, all, c.replay(last+2), "such a number was never sent: another server's")
	require.Equal(t, all, c.replay(1), "it is another run's")
}

// picture is what a router takes to be stored, by topic.
func picture(all []heard) map[string][]uint64 {
	out := map[string][]uint64{}
	for _, h := range all {
		for i, kind := range h.kinds() {
			switch kind {
			case "AllBlocksCleared":
				clear(out) // of the endpoint
			case "BlockStored":
				out[h.topic] = append(out[h.topic], h.numbers(i)...)
			case "BlockRemoved":
				for _, gone := range h.numbers(i) {
					var rest []uint64
					for _, k := range out[h.topic] {
						if k != gone {
							rest = append(rest, k)
						}
					}
					out[h.topic] = rest
				}
			}
		}
	}
	return out
}

// hearUntil hears batches until the picture, of all that it has heard, is that one.
func (c *client) hearUntil(want map[string][]uint64) []heard {
	c.Helper()
	for old := len(c.all); ; {
		c.all = append(c.all, c.hear())
		if n := len(c.all); n > 1 {
			require.Equal(c, c.all[n-2].seq+1, c.all[n-1].seq)
		}
		if sameBlocks(picture(c.all), want) {
			return c.all[old:]
		}
	}
}

func sameBlocks(a, b map[string][]uint64) bool {
	count := func(m map[string][]uint64) map[string]int {
		out := map[string]int{}
		for topic, list := range m {
			for _, n := range list {
				out[topic+string(binary.BigEndian.AppendUint64(nil, n))]++
			}
		}
		return out
	}
	x, y := count(a), count(b)
	for k := range y {
		if x[k] == 0 {
			return false
		}
	}
	return len(x) == len(y)
}

// Routers take AllBlocksCleared as the end of all that an endpoint has. So what a purge leaves is told of again, in the
// same sequence.
func TestAPurgeBeginsAnew(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "a", "b")
	w := start(t, st, Options{Rest: time.Millisecond}) // on a busy machine, more snapshots than need be
	c := w.subscriber("")
	c.replay0(w)
	put(t, n[0], 1, 2)
	put(t, n[1], 3)
	c.hearUntil(map[string][]uint64{"kv@n1@mine/a": {1, 2}, "kv@n1@mine/b": {3}})
	require.NoError(t, st.Purge(t.Context(), skep.Purge{Namespace: n[0].ID}))
	all := c.hearUntil(map[string][]uint64{"kv@n1@mine/b": {3}})
	require.Equal(t, []string{"AllBlocksCleared"}, all[0].kinds())

	require.NoError(t, st.DeleteNamespace(t.Context(), n[1].ID))
	put(t, n[0], 9)
	topics := map[string]bool{}
	for _, h := range c.hearUntil(map[string][]uint64{"kv@n1@mine/a": {9}}) {
		if h.kinds()[0] == "AllBlocksCleared" {
			topics[h.topic] = true
		}
	}
	both := map[string]bool{"kv@n1@mine/a": true, "kv@n1@mine/b": true}
	require.Equal(t, both, topics, "also the one that is no more is told")
}

// Salted blocks are nobody else's business, nor are namespaces that the settings do not name.
func TestWhatIsNotTold(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "open/a", "open/b", "secret")
	w := start(t, st, Options{Namespaces: []string{"mine/open/*"}})
	c := w.subscriber("")
	c.replay0(w)
	put(t, n[2], 1)
	salted := n[0].Salted("salt")
	put(t, salted, 2)
	scope := salted.Scope()
	require.NoError(t, st.Purge(t.Context(), skep.Purge{Salt: &scope}))
	put(t, n[1], 3)
	h := c.hear()
	require.Equal(t, "kv@n1@mine/open/b", h.topic)
	require.Equal(t, []uint64{3}, h.numbers(0))
	require.EqualValues(t, 1, w.p.count.skipped.Load())
	require.EqualValues(t, 1, w.p.count.snapshots.Load(), "a salt's purge takes nothing that was told of")
}

// scripted is a store whose events are a test's.
type scripted struct {
	skep.Store
	lives chan []skep.Event // each a stream from its beginning
}

func (s *scripted) Events(context.Context, skep.Cursor, bool) (skep.EventStream, error) {
	select {
	case events := <-s.lives:
		return &script{events: events}, nil
	default:
		return &script{}, nil
	}
}

type script struct{ events []skep.Event }

func (s *script) Next(ctx context.Context, into []skep.Event) (int, error) {
	if n := copy(into, s.events); n > 0 {
		s.events = s.events[n:]
		return n, nil
	}
	<-ctx.Done()
	return 0, ctx.Err()
}

func (s *script) Told() (<-chan struct{}, error) { return nil, errors.New("it cannot be told") }
func (s *script) Close() error                   { return nil }

// When the store's events came too fast, what is stored is told of anew.
func TestLostEventsBeginAnew(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "a")
	told := func(kind skep.EventKind, number uint64, tier skep.Tier) skep.Event {
		return skep.Event{Kind: kind, Namespace: n[0].ID, Key: key(number), Tier: tier, Time: time.Unix(1e9+1, 0)}
	}
	s := &scripted{Store: st, lives: make(chan []skep.Event, 2)}
	s.lives <- []skep.Event{told(skep.EventStored, 1, skep.TierDevice), {Kind: skep.EventGap, Lost: 7}}
	s.lives <- []skep.Event{told(skep.EventStored, 2, skep.TierDevice), told(skep.EventAccepted, 3, skep.TierDRAM),
		told(skep.EventMoved, 2, skep.TierDevice), told(skep.EventDamaged, 2, skep.TierNone), {Kind: skep.EventDevice}}
	w := start(t, s, Options{})
	require.Eventually(t, func() bool { return w.p.count.removed.Load() == 1 }, patience, time.Millisecond)
	c := dial(t, w.again, "DEALER")
	all := c.replay(0)
	require.Len(t, all, 2, "the last snapshot, and no older one")
	require.Equal(t, []string{"AllBlocksCleared"}, all[0].kinds())
	require.Equal(t, []string{"BlockStored", "BlockRemoved"}, all[1].kinds(), "not what is in memory only, or moves")
	before := c.replay(all[0].seq - 1)
	require.Equal(t, []uint64{1}, before[0].numbers(0), "the sequence goes on over a snapshot")
	require.EqualValues(t, 7, w.p.count.gaps.Load())
}

// A server that was started again goes on with higher numbers, however few or many it sent before.
func TestAnotherRunIsSeenAsAGap(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "a")
	put(t, n[0], 1)
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	first := start(t, st, Options{Clock: clock})
	now2 := now.Add(time.Second)
	second := start(t, st, Options{Clock: func() time.Time { return now2 }})
	for _, w := range []*world{first, second} {
		require.Eventually(t, func() bool { return w.p.count.stored.Load() == 1 }, patience, time.Millisecond)
	}
	a := dial(t, first.again, "DEALER").replay(0)
	last := a[len(a)-1].seq
	b := dial(t, second.again, "DEALER").replay(last + 1)
	require.Greater(t, b[0].seq, last+1)
	require.Equal(t, []string{"AllBlocksCleared"}, b[0].kinds(), "and who asks for what is between hears everything")
	require.Equal(t, map[string][]uint64{"kv@n1@mine/a": {1}}, picture(b))
}

// Where the buffer holds no snapshot any more, a request has one begin, which all subscribers hear.
func TestARequestForWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	st, n := memory(t, "a")
	w := start(t, st, Options{Batches: 3, Room: LeastRoom})
	c := w.subscriber("")
	c.replay0(w)
	for i := range uint64(8) {
		put(t, n[0], i)
		c.all = append(c.all, c.hear())
	}
	got := dial(t, w.again, "DEALER").replay(0)
	require.Len(t, got, 3)
	require.Equal(t, []uint64{5}, got[0].numbers(0))
	require.EqualValues(t, 1, w.p.count.cut.Load())
	all := c.hearUntil(map[string][]uint64{"kv@n1@mine/a": {0, 1, 2, 3, 4, 5, 6, 7}})
	require.Equal(t, []string{"AllBlocksCleared"}, all[0].kinds())
}

// However soon it is to end, Run ends, and with it the listeners and whoever is connected.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	st, _ := memory(t, "a")
	for range 30 {
		p, err := New(st, Options{Node: "n", Namespaces: []string{"*"}, Batches: 1, Room: LeastRoom})
		require.NoError(t, err)
		var at [2]net.Listener
		for i := range at {
			at[i], err = net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx, at[0], at[1]) }()
		c := dial(t, at[0].Addr().String(), "SUB")
		stop()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			require.Fail(t, "it does not end")
		}
		_, err = io.Copy(io.Discard, c.c)
		if err != nil {
			require.ErrorContains(t, err, "reset")
		}
	}
}
