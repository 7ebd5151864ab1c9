package hostile

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"strings"
	"time"
)

// Oracle says what must hold.
type Oracle interface {
	Name() string
	Begin(t *Target) error // before players play; the honest clients are connected, and in no call
	Look(t *Target) error  // while they play, now and again
	End(t *Target) error   // after they have gone; the honest clients are in no call
}

// Oracles are all there are.
func Oracles() []Oracle { return []Oracle{&memory{}, &descriptors{}, &leftovers{}} }

// endsWithin is how long what players had may take to come back to the server; tests of oracles take less.
var endsWithin = 90 * time.Second

// eventually looks until there is nothing to say, at most endsWithin.
func eventually(look func() error) error {
	for end := time.Now().Add(endsWithin); ; time.Sleep(20 * time.Millisecond) {
		err := look()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// over is an error when got is more than cap and a twentieth.
func over(what string, got, cap int64) error {
	if got > cap+cap/20 {
		return fmt.Errorf("%s: %d, the cap is %d", what, got, cap)
	}
	return nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// memory: what the servers count is within their caps, and the live heap within what was there before, the store, those
// caps, what connections may hold, and what players and honest clients do.
type memory struct{ base int64 }

// connBytes is what one connection may hold outside of the shared budgets: its command's arguments, twice as they grow,
// and its buffers.
const connBytes = 2*(4<<20) + 256<<10

// Name implements Oracle.
func (*memory) Name() string { return "memory" }

// Begin implements Oracle.
func (m *memory) Begin(t *Target) error {
	runtime.GC()
	m.base = live() - stored(t)
	return nil
}

// Look implements Oracle.
func (m *memory) Look(t *Target) error {
	h, w := t.Server.Resp.Held(), t.Server.Wire.Stats()
	conns := h.Connections + w.Connections + t.Server.Gates[HTTP].Used()
	cap := m.base + stored(t) + h.MaxSending + h.MaxReceiving + w.MemoryCap + int64(conns)*connBytes + t.playing()*MaxPlayerBytes + 64<<20
	return firstOf(
		over("bytes that RESP sends from", h.Sending, h.MaxSending), over("bytes that RESP receives into", h.Receiving, h.MaxReceiving),
		over("bytes of calls and sessions", w.Memory, w.MemoryCap), over("bytes of the live heap", live(), cap))
}

// End implements Oracle.
func (m *memory) End(t *Target) error {
	return eventually(func() error {
		runtime.GC()
		return over("bytes of the live heap, with nobody there", live(), m.base+stored(t)+32<<20)
	})
}

// live is what the last collection left of the heap.
func live() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// stored is what a store that keeps its blocks on the heap has there, at most.
func stored(t *Target) int64 {
	st, err := t.Server.Store.Stats(context.Background())
	if err != nil {
		return 0
	}
	return st.BlockBytes
}

// descriptors: no protocol has more connections than it may, and the process has no more sockets and shared memory than
// connections account for.
type descriptors struct{ base int }

// Name implements Oracle.
func (*descriptors) Name() string { return "descriptors" }

// Begin implements Oracle.
func (d *descriptors) Begin(*Target) error {
	d.base = descriptorsOpen()
	return nil
}

// Look implements Oracle.
func (d *descriptors) Look(t *Target) error {
	all := 0
	for p, g := range t.Server.Gates {
		if g.Used() > g.Limit() {
			return fmt.Errorf("%d connections of %s, the limit is %d", g.Used(), p, g.Limit())
		}
		all += g.Limit()
	}
	return over("descriptors", int64(descriptorsOpen()-d.base), int64(all)+t.open.Load()+64) // connections on their way in and out
}

// End implements Oracle.
func (d *descriptors) End(*Target) error {
	return eventually(func() error {
		if n := descriptorsOpen(); n > d.base {
			return fmt.Errorf("%d descriptors, %d before anybody came", n, d.base)
		}
		return nil
	})
}

// descriptorsOpen counts what is not a file with a name: sockets, events, memory. 0 where that cannot be told.
func descriptorsOpen() (n int) {
	list, _ := os.ReadDir("/proc/self/fd")
	for _, e := range list {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && (!strings.HasPrefix(to, "/") || strings.HasPrefix(to, "/memfd:")) {
			n++
		}
	}
	return n
}

// leftovers: what the servers and the store count of others is what it was.
type leftovers struct{ before map[string]int64 }

// Name implements Oracle.
func (*leftovers) Name() string { return "nothing is left behind" }

// Begin implements Oracle.
func (l *leftovers) Begin(t *Target) (err error) {
	l.before, err = counts(t)
	return err
}

// Look implements Oracle.
func (l *leftovers) Look(*Target) error { return nil }

// End implements Oracle.
func (l *leftovers) End(t *Target) error {
	return eventually(func() error {
		now, err := counts(t)
		for what, n := range now {
			if n > l.before[what] && err == nil {
				err = fmt.Errorf("%s: %d, %d before anybody came", what, n, l.before[what])
			}
		}
		return err
	})
}

// counts are what must be as before when everybody has gone.
func counts(t *Target) (map[string]int64, error) {
	st, err := t.Server.Store.Stats(context.Background())
	if err != nil {
		return nil, err
	}
	h, w := t.Server.Resp.Held(), t.Server.Wire.Stats()
	out := map[string]int64{
		"players' own connections": t.open.Load(),
		"goroutines":               int64(runtime.NumGoroutine()), "leases of the store": int64(st.Leases),
		"connections of RESP": int64(h.Connections), "bytes RESP sends from": h.Sending, "bytes RESP receives into": h.Receiving,
		"connections of the binary protocol": int64(w.Connections), "sessions": int64(w.Sessions), "event streams": int64(w.Streams),
		"bytes of calls and sessions": w.Memory, "leases of connections": int64(w.Leases), "regions of shared memory": int64(w.Regions),
	}
	for p, g := range t.Server.Gates {
		out["descriptors of "+p] = int64(g.Used())
	}
	return out, nil
}
