package kvevents

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/tools/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// patience is how long a test waits for what must come.
const patience = time.Minute

// world is a store, whose events are published.
type world struct {
	*testing.T
	st         skep.Store
	p          *Publisher
	pub, again string // addresses
}

// start publishes the events of st until the test ends.
func start(t *testing.T, st skep.Store, o Options) *world {
	t.Helper()
	if o.Node == "" {
		o.Node = "n1"
	}
	if o.Namespaces == nil {
		o.Namespaces = []string{"*"}
	}
	if o.Batches == 0 {
		o.Batches, o.Room = 1000, LeastRoom
	}
	if o.Rest == 0 {
		o.Rest = time.Millisecond
	}
	p, err := New(st, o)
	require.NoError(t, err)
	w := &world{T: t, st: st, p: p}
	listen := func(at *string) net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		*at = l.Addr().String()
		return l
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	pub, again := listen(&w.pub), listen(&w.again)
	go func() { ended <- p.Run(ctx, pub, again) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended)
	})
	return w
}

// memory is a store in memory with namespaces of these names, of tenant mine.
func memory(t *testing.T, names ...string) (*memstore.Store, []*skep.Namespace) {
	t.Helper()
	st := memstore.New(memstore.Options{})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	var out []*skep.Namespace
	for _, name := range names {
		out = append(out, open(t, st, name))
	}
	return st, out
}

func open(t *testing.T, st skep.Store, name string) *skep.Namespace {
	t.Helper()
	spec := skep.NamespaceSpec{Tenant: "mine", Name: name, Shape: skep.Shape{BlockTokens: 16}}
	n, err := skep.OpenNamespace(t.Context(), st, spec)
	require.NoError(t, err)
	return n
}

// key is the key whose number is n.
func key(n uint64) (k skep.Key) {
	k[0] = 0xaa
	binary.BigEndian.PutUint64(k[len(k)-8:], n)
	return k
}

func put(t *testing.T, n *skep.Namespace, numbers ...uint64) {
	t.Helper()
	for _, i := range numbers {
		_, err := n.Put(t.Context(), []skep.Key{key(i)}, 0, []byte("bytes"))
		require.NoError(t, err)
	}
}

// client speaks ZMTP as a subscriber, or as one who asks.
type client struct {
	*testing.T
	c   net.Conn
	p   *peer
	all []heard // by hearUntil

	early  [][][]byte // messages that came before a PONG
	begun  uint64     // what has a lower number is of the first snapshot
	passed int64      // batches of it that hear passed over
}

// dial connects as a socket of type kind.
func dial(t *testing.T, addr, kind string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	p, err := greet(c, kind, "PUB", "ROUTER")
	require.NoError(t, err)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	return &client{T: t, c: c, p: p}
}

// command sends a command.
func (c *client) command(name, body string) {
	c.Helper()
	require.NoError(c, c.p.send(flagCommand, append(shortString(name), body...)))
}

// ping waits until the publisher has carried out what was sent before, and gives back what a PONG repeats. What is
// published meanwhile is heard afterwards.
func (c *client) ping(context string) string {
	c.Helper()
	c.command("PING", "\x00\x0a"+context)
	message, isCommand := c.receive()
	for ; !isCommand; message, isCommand = c.receive() {
		c.early = append(c.early, message)
	}
	name, rest, ok := command(message[0])
	require.True(c, ok)
	require.Equal(c, "PONG", name)
	return string(rest)
}

// receive reads the next message, however long its frames are.
func (c *client) receive() (frames [][]byte, isCommand bool) {
	c.Helper()
	for {
		flags, err := c.p.r.ReadByte()
		require.NoError(c, err)
		length := make([]byte, 8)
		if flags&flagLong != 0 {
			_, err = io.ReadFull(c.p.r, length)
		} else {
			_, err = io.ReadFull(c.p.r, length[7:])
		}
		require.NoError(c, err)
		body := make([]byte, binary.BigEndian.Uint64(length))
		_, err = io.ReadFull(c.p.r, body)
		require.NoError(c, err)
		frames = append(frames, body)
		if flags&flagMore == 0 {
			return frames, flags&flagCommand != 0
		}
	}
}

// heard is a batch as a router has it.
type heard struct {
	topic  string
	seq    uint64
	events []map[string]any
	rank   any
}

// kinds are the types of its events.
func (h heard) kinds() (out []string) {
	for _, e := range h.events {
		out = append(out, e["type"].(string))
	}
	return out
}

// numbers are the hashes of the event at i.
func (h heard) numbers(i int) (out []uint64) {
	for _, n := range h.events[i]["block_hashes"].([]any) {
		switch n := n.(type) {
		case uint64:
			out = append(out, n)
		case int64:
			out = append(out, uint64(n))
		}
	}
	return out
}

func decode(t *testing.T, frames [][]byte) heard {
	t.Helper()
	require.Len(t, frames, 3)
	require.Len(t, frames[1], 8)
	var body []any
	h := &codec.MsgpackHandle{WriteExt: true}
	h.RawToString = true
	h.MapType = nil
	require.NoError(t, codec.NewDecoderBytes(frames[2], h).Decode(&body))
	require.Len(t, body, 3, "time, events and rank, each always there")
	out := heard{topic: string(frames[0]), seq: binary.BigEndian.Uint64(frames[1]), rank: body[2]}
	require.Greater(t, body[0].(float64), 1e9)
	for _, e := range body[1].([]any) {
		one := map[string]any{}
		for k, v := range e.(map[any]any) {
			one[k.(string)] = v
		}
		out.events = append(out.events, one)
	}
	return out
}

// hear is the next batch of a subscriber, of those after the first snapshot where that was waited for.
func (c *client) hear() heard {
	c.Helper()
	for {
		if h := decode(c.T, c.message()); h.seq >= c.begun {
			return h
		}
		c.passed++
	}
}

// message is the next message of a subscriber.
func (c *client) message() [][]byte {
	c.Helper()
	if len(c.early) > 0 {
		next := c.early[0]
		c.early = c.early[1:]
		return next
	}
	frames, isCommand := c.receive()
	require.False(c, isCommand)
	return frames
}

// replay asks for what came from start on.
func (c *client) replay(start uint64) (out []heard) {
	c.Helper()
	require.NoError(c, c.p.message(nil, binary.BigEndian.AppendUint64(nil, start)))
	require.NoError(c, c.p.flush())
	for {
		frames, isCommand := c.receive()
		require.False(c, isCommand)
		require.Len(c, frames, 4)
		require.Empty(c, frames[0], "the delimiter that REQ and DEALER want")
		if len(frames[3]) == 0 {
			require.Empty(c, frames[1])
			require.Equal(c, end, frames[2])
			return out
		}
		out = append(out, decode(c.T, frames[1:]))
	}
}

// subscriber is one of all topics that begin so, who hears what comes from now on.
func (w *world) subscriber(begin string) *client {
	w.Helper()
	c := dial(w.T, w.pub, "SUB")
	c.command("SUBSCRIBE", begin)
	c.ping("")
	return c
}
