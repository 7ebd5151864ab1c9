package wire

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/shm"
)

// scriptedTo is a client of a scripted server, which knows of a namespace of blocks of 64 KiB, and retries nothing.
func scriptedTo(t *testing.T, silence time.Duration, answers func(c *rawConn, h frames.Header, body []byte)) *Client {
	o := scripted(t, answers)
	o.Silence, o.Strict, o.Retries = silence, true, -1
	c, err := Dial(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	c.know(skep.NamespaceInfo{ID: 1, NamespaceSpec: skep.NamespaceSpec{Shape: skep.Shape{BlockTokens: 1,
		Bytes: blockSize}}})
	return c
}

func restoreOf(blocks int) *skep.RestoreRequest {
	keys := make([]skep.Key, blocks)
	for i := range keys {
		keys[i] = skep.KeyOf([]byte{byte(i)})
	}
	return &skep.RestoreRequest{Window: frames.LeastWindow, Chains: []skep.Chain{{Scope: skep.Scope{Namespace: 1},
		Keys: keys}}}
}

// A server that sends chunks before it has answered the restore is cut off: until then the session may be begun
// elsewhere.
func TestChunksComeBehindTheAnswer(t *testing.T) {
	t.Parallel()
	c := scriptedTo(t, time.Minute, func(c *rawConn, h frames.Header, _ []byte) {
		if h.Type == frames.TypeRestore {
			c.send(t, frames.Header{Type: frames.TypeChunks, Call: h.Call}, &frames.Chunks{List: []frames.Piece{{
				What: frames.PieceMiss, Err: frames.BodyOf(frames.ErrStopped)}}}, "")
			c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, nil, "")
		}
	})
	_, err := c.Restore(t.Context(), restoreOf(1))
	require.ErrorIs(t, err, skep.Unavailable)
	require.ErrorContains(t, err, "behind the answer")
}

// An answer that is none cuts the connection off, and its call is told so, too: a restore does not wait for another one.
func TestACallHearsOfItsMalformedAnswer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(c *rawConn, h frames.Header){
		"an error that is no message": func(c *rawConn, h frames.Header) {
			c.send(t, frames.Header{Type: frames.TypeError, Call: h.Call}, oneByte{}, "")
		},
		"an error with a payload": func(c *rawConn, h frames.Header) {
			b := frames.BodyOf(frames.ErrStopped)
			c.send(t, frames.Header{Type: frames.TypeError, Call: h.Call}, &b, "p")
		},
		"an answer with a payload": func(c *rawConn, h frames.Header) {
			c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, nil, "p")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := scriptedTo(t, time.Minute, func(c *rawConn, h frames.Header, _ []byte) {
				if h.Type == frames.TypeRestore {
					answer(c, h)
				}
			})
			told := make(chan error, 1)
			go func() {
				_, err := c.Restore(context.Background(), restoreOf(1))
				told <- err
			}()
			select {
			case err := <-told:
				require.ErrorIs(t, err, skep.Unavailable)
			case <-time.After(20 * time.Second):
				require.Fail(t, "the restore waits for an answer that came")
			}
		})
	}
}

// oneByte is a body that is no message.
type oneByte struct{}

func (oneByte) Walk(c *frames.Coder) { c.Body = append(c.Body, 1) }

// A restore that is begun again, as its answer was lost, keeps nothing that the ring told of the first try: all comes.
func TestASecondTryBeginsWithNothing(t *testing.T) {
	t.Parallel()
	dialled := make(chan *clientConn, 1)
	var tries atomic.Int64
	o := scripted(t, func(w *rawConn, h frames.Header, _ []byte) {
		if h.Type != frames.TypeRestore {
			return
		}
		if tries.Add(1) == 1 {
			x := <-dialled
			x.mu.Lock()
			s := x.sessions[h.Call]
			x.mu.Unlock()
			assert.NoError(t, s.completion(&shm.Entry{Bytes: blockSize, Tier: skep.TierDRAM}))
			assert.NoError(t, s.completion(&shm.Entry{What: shm.End}))
			w.Close()
			return
		}
		w.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, nil, "")
		for i := range 2 {
			sendBlock(t, w, frames.Header{Call: h.Call, Flags: frames.FlagLast * uint16(i)}, i, "v")
		}
	})
	o.Strict, o.Retries, o.Conns = true, 1, 1
	c, err := Dial(t.Context(), o)
	require.NoError(t, err)
	defer c.Close()
	c.know(skep.NamespaceInfo{ID: 1,
		NamespaceSpec: skep.NamespaceSpec{Shape: skep.Shape{BlockTokens: 1, Bytes: blockSize}}})
	first, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	dialled <- first
	s, err := c.Restore(t.Context(), restoreOf(2))
	require.NoError(t, err)
	got := collect(t, s)
	require.Len(t, got, 2)
	for _, x := range got {
		require.NoError(t, x.Err)
		require.Equal(t, skep.TierDevice, x.Tier)
		x.Release()
	}
	require.EqualValues(t, 2, tries.Load())
}

// sendBlock sends a block of v.
func sendBlock(t *testing.T, c *rawConn, h frames.Header, block int, v string) {
	b := strings.Repeat(v, blockSize)
	h.Type = frames.TypeChunks
	sum := frames.Sum{Kind: frames.SumCRC32, Len: blockSize, Check: uint64(crc32.ChecksumIEEE([]byte(b)))}
	c.send(t, h, &frames.Chunks{List: []frames.Piece{{Block: uint32(block), Bytes: blockSize, Len: blockSize,
		Tier: skep.TierDevice, Sums: []frames.Sum{sum}}}}, b)
}

// A chunk that comes twice cuts the connection off before its bytes are where the caller has the first ones.
func TestAChunkThatComesAgainWritesNothing(t *testing.T) {
	t.Parallel()
	c := scriptedTo(t, time.Minute, func(c *rawConn, h frames.Header, _ []byte) {
		if h.Type != frames.TypeRestore {
			return
		}
		c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, nil, "")
		for _, v := range []string{"a", "b"} {
			sendBlock(t, c, frames.Header{Call: h.Call}, 0, v)
		}
	})
	req := restoreOf(2)
	mem := make([]byte, 2*blockSize)
	req.Chains[0].Dest = skep.Destination{Memory: mem, Stride: blockSize}
	s, err := c.Restore(t.Context(), req)
	require.NoError(t, err)
	got := collect(t, s)
	require.Len(t, got, 2)
	require.NoError(t, got[0].Err)
	require.ErrorIs(t, got[1].Err, skep.Unavailable)
	require.Equal(t, strings.Repeat("a", blockSize), string(mem[:blockSize]))
}

// A connection that ends knows nothing more of the sessions whose answer is lost: they may be begun on another one.
func TestASessionWithoutAnAnswerIsOfNoConnection(t *testing.T) {
	t.Parallel()
	c := scriptedTo(t, time.Minute, func(*rawConn, frames.Header, []byte) {})
	x, err := c.conn(t.Context(), 0)
	require.NoError(t, err)
	began, other := &clientSession{c: c, landed: make(chan struct{}, 1)},
		&clientSession{c: c, landed: make(chan struct{}, 1)}
	p := &pendingCall{t: frames.TypeRestore, reply: make(chan reply, 1)}
	id, err := x.enlist(p)
	require.NoError(t, err)
	x.mu.Lock()
	x.sessions[id], x.sessions[id+1] = other, began
	x.mu.Unlock()
	x.end(errClosed)
	require.True(t, (<-p.reply).lost)
	<-x.stopped
	require.Eventually(t, func() bool { return !began.going() }, time.Minute, time.Millisecond)
	require.True(t, other.going())
}

// A stream of events on a connection that says nothing any more ends.
func TestAStreamOfEventsThatIsSilentEnds(t *testing.T) {
	t.Parallel()
	c := scriptedTo(t, 50*time.Millisecond, func(c *rawConn, h frames.Header, _ []byte) {
		if h.Type == frames.TypeEvents {
			c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, nil, "")
		}
	})
	events, err := c.Events(t.Context(), skep.Cursor{}, false)
	require.NoError(t, err)
	within, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = events.Next(within, make([]skep.Event, 1))
	require.ErrorIs(t, err, skep.Unavailable)
}

// A server that sends more than it has credit for is cut off: the client would keep all of it. One piece may pass it.
func TestChunksBeyondTheCreditAreRefused(t *testing.T) {
	t.Parallel()
	const blocks = frames.LeastWindow/blockSize + 2
	for name, sent := range map[string]int{"within": blocks - 2, "beyond": blocks} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := scriptedTo(t, time.Minute, func(c *rawConn, h frames.Header, _ []byte) {
				if h.Type != frames.TypeRestore {
					return
				}
				c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call}, nil, "")
				for i := range sent {
					flags := uint16(0)
					if i == sent-1 {
						flags = frames.FlagLast
					}
					b := make([]byte, blockSize)
					c.send(t, frames.Header{Type: frames.TypeChunks, Call: h.Call, Flags: flags}, &frames.Chunks{List: []frames.Piece{{
						Block: uint32(i), Bytes: blockSize, Len: blockSize}}}, string(b))
				}
			})
			s, err := c.Restore(t.Context(), restoreOf(blocks))
			require.NoError(t, err)
			x := s.(*clientSession).x
			// Nothing is read, so nothing is credited, until all has come.
			require.Eventually(t, func() bool { return !s.(*clientSession).going() }, time.Minute, time.Millisecond)
			require.Equal(t, sent < blocks, x.alive(), "%v", x.err)
			into := make([]skep.Chunk, blocks)
			_, err = s.Next(t.Context(), into)
			require.True(t, err == nil || errors.Is(err, io.EOF))
		})
	}
}

// A put that is longer than its server takes any more, as when it was to go past the socket and that has ended, is not
// sent: its caller may try again.
func TestAPutThatGotTooLongIsNotSent(t *testing.T) {
	t.Parallel()
	c := scriptedTo(t, time.Minute, func(c *rawConn, h frames.Header, _ []byte) {
		if h.Type == frames.TypePut {
			c.send(t, frames.Header{Type: h.Type | frames.Answer, Call: h.Call},
				&frames.PutResults{List: make([]skep.PutResult, 3)}, "")
		}
	})
	req := &skep.PutRequest{Scope: skep.Scope{Namespace: 1}}
	for i := range 3 {
		req.Blocks = append(req.Blocks, skep.Block{Key: skep.KeyOf([]byte{byte(i)}),
			Parts: []skep.Part{{Bytes: make([]byte, 512<<10)}}})
	}
	_, err := c.putRun(t.Context(), req, skep.Range{To: 3}, nil) // scripted servers take 1 MiB
	require.ErrorIs(t, err, skep.Overloaded)
}
