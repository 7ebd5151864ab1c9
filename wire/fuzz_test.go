package wire

import (
	"bytes"
	"context"
	"net"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/frames"
	"github.com/skepkv/skep/wire/link"
	"github.com/skepkv/skep/wire/server"
	"github.com/skepkv/skep/wire/shm"
)

// bodiesOf are the messages a peer may send, by type: what parses them is the same on
// both sides.
var bodiesOf = map[frames.Type]func() frames.Message{
	frames.TypeHello: func() frames.Message { return &frames.Hello{} }, frames.TypeHello | frames.Answer: func() frames.Message { return &frames.Welcome{} },
	frames.TypeCancel: func() frames.Message { return &frames.Number{} }, frames.TypeGoodbye: func() frames.Message { return &frames.Goodbye{} },
	frames.TypeOpenNamespace: func() frames.Message { return &frames.NamespaceSpec{} }, frames.TypeOpenNamespace | frames.Answer: func() frames.Message { return &frames.NamespaceInfo{} },
	frames.TypeNamespaces | frames.Answer: func() frames.Message { return &frames.NamespaceList{} },
	frames.TypeLookup:                     func() frames.Message { return &frames.LookupRequest{} }, frames.TypeLookup | frames.Answer: func() frames.Message { return &frames.LookupResult{} },
	frames.TypeLookupRuns: func() frames.Message { return &frames.RunsRequest{} }, frames.TypeLookupRuns | frames.Answer: func() frames.Message { return &frames.RunsResult{} },
	frames.TypeRenew: func() frames.Message { return &frames.Lease{} }, frames.TypeWant: func() frames.Message { return &frames.WantRequest{} },
	frames.TypeWant | frames.Answer: func() frames.Message { return &frames.WantResult{} }, frames.TypePut: func() frames.Message { return &frames.PutRequest{} },
	frames.TypePutEach:             func() frames.Message { return &frames.PutRequest{} },
	frames.TypePut | frames.Answer: func() frames.Message { return &frames.PutResults{} }, frames.TypeBegin: func() frames.Message { return &frames.BeginRequest{} },
	frames.TypeWrite: func() frames.Message { return &frames.WriteRequest{} }, frames.TypeCommit: func() frames.Message { return &frames.CommitRequest{} },
	frames.TypeRestore: func() frames.Message { return &frames.RestoreRequest{} }, frames.TypeCredit: func() frames.Message { return &frames.Credit{} },
	frames.TypeClaim: func() frames.Message { return &frames.ClaimRequest{} }, frames.TypeClaim | frames.Answer: func() frames.Message { return &frames.ClaimResult{} },
	frames.TypeReprioritise: func() frames.Message { return &frames.ReprioritiseRequest{} }, frames.TypeStop: func() frames.Message { return &frames.StopRequest{} },
	frames.TypeCostedRestore: func() frames.Message { return &frames.CostedRestoreRequest{} }, frames.TypeClaimWhen: func() frames.Message { return &frames.ClaimWhenRequest{} },
	frames.TypeComputed: func() frames.Message { return &frames.ComputedRequest{} }, frames.TypeBoard: func() frames.Message { return &frames.BoardRequest{} },
	frames.TypeDirection: func() frames.Message { return &frames.DirectionRequest{} }, frames.TypeDirection | frames.Answer: func() frames.Message { return &frames.DirectionResult{} },
	frames.TypeChunks: func() frames.Message { return &frames.Chunks{} }, frames.TypeHint: func() frames.Message { return &frames.HintRequest{} },
	frames.TypeDelete: func() frames.Message { return &frames.DeleteRequest{} }, frames.TypePurge: func() frames.Message { return &frames.PurgeRequest{} },
	frames.TypeDeleteNamespace: func() frames.Message { return &frames.Number{} },
	frames.TypeList:            func() frames.Message { return &frames.ListRequest{} }, frames.TypeList | frames.Answer: func() frames.Message { return &frames.ListResult{} },
	frames.TypeStats | frames.Answer: func() frames.Message { return &frames.Document{} }, frames.TypeEvents: func() frames.Message { return &frames.EventsRequest{} },
	frames.TypeEventBatch: func() frames.Message { return &frames.EventBatch{} }, frames.TypeAdmin: func() frames.Message { return &frames.AdminRequest{} },
	frames.TypeAttachMemory: func() frames.Message { return &frames.AttachMemoryRequest{} },
	frames.TypeDetachMemory: func() frames.Message { return &frames.Number{} },
	frames.TypeAttach:       func() frames.Message { return &frames.AttachRequest{} }, frames.TypeError: func() frames.Message { return &frames.ErrorBody{} },
}

// allowance is a purse with a bottom.
type allowance struct{ left, spent int64 }

func (a *allowance) Spend(n int64) error {
	if n > a.left-a.spent {
		return link.Overloaded("memory", time.Second)
	}
	a.spent += n
	return nil
}

// makes is how many bytes f makes.
func makes(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// FuzzBody: a body is either refused or exactly what its message is written as, and
// reading it makes no more than twice what it may: what was paid for where there is enough,
// and what there is where there is not.
func FuzzBody(f *testing.F) {
	for _, v := range vectors() {
		if v.m == nil {
			continue
		}
		b, err := frames.AppendFrame(nil, v.h, v.m)
		require.NoError(f, err)
		f.Add(byte(v.h.Type), b[frames.HeaderSize:])
	}
	f.Fuzz(func(t *testing.T, typ byte, body []byte) {
		make, ok := bodiesOf[frames.Type(typ)]
		if !ok {
			return
		}
		const slack = 64 << 10 // of measuring, and of other goroutines
		m := make()
		var err error
		rich := &allowance{left: 1 << 40}
		if grew := makes(func() {
			err = frames.DecodePaid(frames.Type(typ), body, m,
				rich)
		}); grew > 2*rich.spent+slack {
			t.Fatalf("%d bytes made of a body of %d, and %d paid for", grew, len(body), rich.spent)
		}
		poor := &allowance{left: int64(len(body))}
		if grew := makes(func() {
			_ = frames.DecodePaid(frames.Type(typ), body, make(),
				poor)
		}); grew > 2*poor.left+slack {
			t.Fatalf("%d bytes made of a body of %d, and no more to spend than that", grew, len(body))
		}
		if err != nil {
			return
		}
		again, err := frames.AppendFrame(nil, frames.Header{Type: frames.Type(typ)}, m)
		require.NoError(t, err)
		require.Equal(t, body, again[frames.HeaderSize:])
		twin := reflect.New(reflect.TypeOf(m).Elem()).Interface().(frames.Message)
		require.NoError(t, frames.Decode(frames.Type(typ), body, twin))
	})
}

// FuzzHeader: a header is refused or written again as it was.
func FuzzHeader(f *testing.F) {
	for _, v := range vectors() {
		b, err := frames.AppendFrame(nil, v.h, v.m)
		require.NoError(f, err)
		f.Add(b[:frames.HeaderSize])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := frames.ParseHeader(b)
		if err != nil {
			return
		}
		require.Equal(t, b[:frames.HeaderSize], h.Append(nil))
	})
}

// FuzzRingEntry: an entry of the ring likewise.
func FuzzRingEntry(f *testing.F) {
	e := shm.Entry{Session: 1, Chain: 2, Block: 3, Bytes: 4, Kind: 5, What: 1, Tier: 2}
	f.Add(e.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := shm.Parse(b); err == nil {
			require.Equal(t, b[:40], e.Append(nil)[:40])
		}
	})
}

// FuzzServer: whatever a client that has authenticated sends, the server neither
// panics nor keeps anything.
func FuzzServer(f *testing.F) {
	hi, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeHello}, &frames.Hello{Min: 1, Max: 1})
	require.NoError(f, err)
	for _, v := range vectors() {
		v.h.Payload = uint32(len(v.payload))
		b, err := frames.AppendFrame(nil, v.h, v.m)
		require.NoError(f, err)
		f.Add(append(append([]byte(nil), hi...), append(b, v.payload...)...))
	}
	st := memstore.New(memstore.Options{})
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			var sink bytes.Buffer
			_, _ = sink.ReadFrom(a)
		}()
		s, err := server.New(st, server.Options{Limits: server.Limits{Body: 1 << 20, Payload: 1 << 20, Memory: 8 << 20, Stall: time.Second}})
		require.NoError(t, err)
		l, left := newPipes(), make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx, l) }()
		l.come <- &ending{Conn: b, closed: left}
		_ = a.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = a.Write(mended(in))
		a.Close()
		<-done
		<-left
		stop()
		require.NoError(t, <-served)
		if n := s.Stats().Memory; n != 0 {
			t.Fatalf("%d bytes still charged", n)
		}
	})
	f.Cleanup(func() { _ = st.Close() })
}

// ending is a connection that says when it is closed.
type ending struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (e *ending) Close() error {
	err := e.Conn.Close()
	e.once.Do(func() { close(e.closed) })
	return err
}

// mended is a stream of frames whose checksums are right, so that what is behind them is
// reached.
func mended(in []byte) []byte {
	out := append([]byte(nil), in...)
	for at := 0; at+frames.HeaderSize <= len(out); {
		h := frames.Header{Version: frames.Version, Type: frames.Type(out[at+5]),
			Flags: frames.LittleEndian.Uint16(out[at+6:]), Call: frames.LittleEndian.Uint64(out[at+8:]),
			Body: frames.LittleEndian.Uint32(out[at+16:]) % 4096, Payload: frames.LittleEndian.Uint32(out[at+20:]) % 4096}
		end := min(at+frames.HeaderSize+int(h.Body), len(out))
		h.Body = uint32(end - at - frames.HeaderSize)
		h.BodySum = uint32(link.SumOver(frames.SumCRC32, out[at+frames.HeaderSize:end]))
		h.Append(out[at:at])
		at = end + int(h.Payload)
	}
	return out
}

// FuzzClient: whatever a server sends, the client neither panics nor hangs.
func FuzzClient(f *testing.F) {
	for _, v := range vectors() {
		v.h.Payload = uint32(len(v.payload))
		b, err := frames.AppendFrame(nil, v.h, v.m)
		require.NoError(f, err)
		f.Add(append(b, v.payload...))
	}
	welcome, err := frames.AppendFrame(nil, frames.Header{Type: frames.TypeHello | frames.Answer},
		&frames.Welcome{Version: 1, MaxBody: 1 << 20, MaxPayload: 1 << 20, MaxKeys: 100, MaxCalls: 4})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, in []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		a, b := net.Pipe()
		go func() {
			buf := make([]byte, 4096)
			_, _ = a.Read(buf)
			_, _ = a.Write(welcome)
			go func() {
				for {
					if _, err := a.Read(buf); err != nil {
						return
					}
				}
			}()
			_, _ = a.Write(mended(in))
			a.Close()
		}()
		c, err := Dial(ctx, Options{Conns: 1, Timeout: 100 * time.Millisecond, Patience: 100 * time.Millisecond, Dialer: func(context.Context) (net.Conn, error) { return b, nil }})
		if err != nil {
			a.Close()
			return
		}
		_, _ = c.Namespaces(ctx)
		require.NoError(t, c.Close())
	})
}
