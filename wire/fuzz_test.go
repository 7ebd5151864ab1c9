package wire

import (
	"bytes"
	"context"
	"net"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep/store/memstore"
	"github.com/skepkv/skep/wire/shm"
)

// bodiesOf are the messages a peer may send, by type: what parses them is the same on
// both sides.
var bodiesOf = map[Type]func() message{
	TypeHello: func() message { return &hello{} }, TypeHello | answer: func() message { return &welcome{} },
	TypeCancel: func() message { return &number{} }, TypeGoodbye: func() message { return &goodbye{} },
	TypeOpenNamespace: func() message { return &namespaceSpec{} }, TypeOpenNamespace | answer: func() message { return &namespaceInfo{} },
	TypeNamespaces | answer: func() message { return &namespaceList{} },
	TypeLookup:              func() message { return &lookupRequest{} }, TypeLookup | answer: func() message { return &lookupResult{} },
	TypeLookupRuns: func() message { return &runsRequest{} }, TypeLookupRuns | answer: func() message { return &runsResult{} },
	TypeRenew: func() message { return &lease{} }, TypeWant: func() message { return &wantRequest{} },
	TypeWant | answer: func() message { return &wantResult{} }, TypePut: func() message { return &putRequest{} },
	TypePut | answer: func() message { return &putResults{} }, TypeBegin: func() message { return &beginRequest{} },
	TypeWrite: func() message { return &writeRequest{} }, TypeCommit: func() message { return &commitRequest{} },
	TypeRestore: func() message { return &restoreRequest{} }, TypeCredit: func() message { return &credit{} },
	TypeClaim: func() message { return &claimRequest{} }, TypeClaim | answer: func() message { return &claimResult{} },
	TypeReprioritise: func() message { return &reprioritiseRequest{} }, TypeStop: func() message { return &stopRequest{} },
	TypeCostedRestore: func() message { return &costedRestoreRequest{} }, TypeClaimWhen: func() message { return &claimWhenRequest{} },
	TypeComputed: func() message { return &computedRequest{} }, TypeBoard: func() message { return &boardRequest{} },
	TypeDirection: func() message { return &directionRequest{} }, TypeDirection | answer: func() message { return &directionResult{} },
	TypeChunks: func() message { return &chunks{} }, TypeHint: func() message { return &hintRequest{} },
	TypeDelete: func() message { return &deleteRequest{} }, TypePurge: func() message { return &purgeRequest{} },
	TypeDeleteNamespace: func() message { return &number{} },
	TypeList:            func() message { return &listRequest{} }, TypeList | answer: func() message { return &listResult{} },
	TypeStats | answer: func() message { return &document{} }, TypeEvents: func() message { return &eventsRequest{} },
	TypeEventBatch: func() message { return &eventBatch{} }, TypeAdmin: func() message { return &adminRequest{} },
	TypeAttachMemory: func() message { return &attachMemoryRequest{} },
	TypeDetachMemory: func() message { return &number{} },
	TypeAttach:       func() message { return &attachRequest{} }, TypeError: func() message { return &errorBody{} },
}

// allowance is a purse with a bottom.
type allowance struct{ left, spent int64 }

func (a *allowance) spend(n int64) error {
	if n > a.left-a.spent {
		return overloaded("memory", time.Second)
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
		b, err := appendFrame(nil, v.h, v.m)
		require.NoError(f, err)
		f.Add(byte(v.h.Type), b[HeaderSize:])
	}
	f.Fuzz(func(t *testing.T, typ byte, body []byte) {
		make, ok := bodiesOf[Type(typ)]
		if !ok {
			return
		}
		const slack = 64 << 10 // of measuring, and of other goroutines
		m := make()
		var err error
		rich := &allowance{left: 1 << 40}
		if grew := makes(func() { err = decodePaid(Type(typ), body, m, rich) }); grew > 2*rich.spent+slack {
			t.Fatalf("%d bytes made of a body of %d, and %d paid for", grew, len(body), rich.spent)
		}
		poor := &allowance{left: int64(len(body))}
		if grew := makes(func() { _ = decodePaid(Type(typ), body, make(), poor) }); grew > 2*poor.left+slack {
			t.Fatalf("%d bytes made of a body of %d, and no more to spend than that", grew, len(body))
		}
		if err != nil {
			return
		}
		again, err := appendFrame(nil, Header{Type: Type(typ)}, m)
		require.NoError(t, err)
		require.Equal(t, body, again[HeaderSize:])
		twin := reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
		require.NoError(t, decode(Type(typ), body, twin))
	})
}

// FuzzHeader: a header is refused or written again as it was.
func FuzzHeader(f *testing.F) {
	for _, v := range vectors() {
		b, err := appendFrame(nil, v.h, v.m)
		require.NoError(f, err)
		f.Add(b[:HeaderSize])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		if err != nil {
			return
		}
		require.Equal(t, b[:HeaderSize], h.Append(nil))
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
	hi, err := appendFrame(nil, Header{Type: TypeHello}, &hello{Min: 1, Max: 1})
	require.NoError(f, err)
	for _, v := range vectors() {
		v.h.Payload = uint32(len(v.payload))
		b, err := appendFrame(nil, v.h, v.m)
		require.NoError(f, err)
		f.Add(append(append([]byte(nil), hi...), append(b, v.payload...)...))
	}
	st := memstore.New(memstore.Options{})
	s, err := NewServer(st, ServerOptions{Limits: Limits{Body: 1 << 20, Payload: 1 << 20, Memory: 8 << 20, Stall: time.Second}})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, in []byte) {
		a, b := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			var sink bytes.Buffer
			_, _ = sink.ReadFrom(a)
		}()
		s.accept(b)
		_ = a.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = a.Write(mended(in))
		a.Close()
		<-done
		s.wait.Wait()
		if n := s.memory.Used(); n != 0 {
			t.Fatalf("%d bytes still charged", n)
		}
	})
	f.Cleanup(func() { _ = st.Close() })
}

// mended is a stream of frames whose checksums are right, so that what is behind them is
// reached.
func mended(in []byte) []byte {
	out := append([]byte(nil), in...)
	for at := 0; at+HeaderSize <= len(out); {
		h := Header{Version: Version, Type: Type(out[at+5]), Flags: le.Uint16(out[at+6:]), Call: le.Uint64(out[at+8:]),
			Body: le.Uint32(out[at+16:]) % 4096, Payload: le.Uint32(out[at+20:]) % 4096}
		end := min(at+HeaderSize+int(h.Body), len(out))
		h.Body = uint32(end - at - HeaderSize)
		h.BodySum = uint32(sumOver(sumCRC32, out[at+HeaderSize:end]))
		h.Append(out[at:at])
		at = end + int(h.Payload)
	}
	return out
}

// FuzzClient: whatever a server sends, the client neither panics nor hangs.
func FuzzClient(f *testing.F) {
	for _, v := range vectors() {
		v.h.Payload = uint32(len(v.payload))
		b, err := appendFrame(nil, v.h, v.m)
		require.NoError(f, err)
		f.Add(append(b, v.payload...))
	}
	welcome, err := appendFrame(nil, Header{Type: TypeHello | answer}, &welcome{Version: 1, MaxBody: 1 << 20, MaxPayload: 1 << 20, MaxKeys: 100, MaxCalls: 4})
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
