package store

import (
	"context"
	"errors"

	"github.com/stretchr/testify/require"

	"github.com/skepkv/skep"
)

// Calls that change a store's devices, or end it.

// inUse are the indices of drives that are not removed.
func (w *secondWorld) inUse() (list []int) {
	for i, d := range w.s.members.All() {
		if !d.Removed.Load() {
			list = append(list, i)
		}
	}
	return list
}

// addDevice adds one, and no more. (That a file is in use already the devices of this rig cannot say.)
func (w *secondWorld) addDevice() secondCall {
	if w.drives == 5 {
		return secondCall{}
	}
	path := w.device(w.path)
	w.path++
	added := false
	return secondCall{name: "add device", do: func(ctx context.Context) error {
		if added {
			return nil
		}
		err := w.s.AddDevice(ctx, NewDevice{Path: path})
		added = err == nil
		return err
	}, done: func() {
		w.drives++
		require.Len(w.t, w.inUse(), w.drives)
	}}
}

// drainDevice empties a device and then keeps it.
func (w *secondWorld) drainDevice() secondCall {
	list := w.inUse()
	which := itoa(list[w.rng.IntN(len(list))])
	return secondCall{name: "drain and keep", moves: true, do: func(ctx context.Context) error {
		if _, err := w.s.DrainDevice(ctx, which, MoveOptions{}); err != nil {
			return err
		}
		return w.s.KeepDevice(ctx, which)
	}, done: func() { require.Len(w.t, w.inUse(), w.drives) }}
}

// removeDevice takes one out. That it is out already is the answer where the first call did it.
func (w *secondWorld) removeDevice() secondCall {
	if w.drives < 4 {
		return secondCall{}
	}
	list := w.inUse()
	which := list[w.rng.IntN(len(list))]
	d := w.s.members.All()[which]
	tried := false
	return secondCall{name: "remove device", moves: true, do: func(ctx context.Context) error {
		_, err := w.s.RemoveDevice(ctx, itoa(which), MoveOptions{})
		if tried && errors.Is(err, skep.NotFound) && d.Removed.Load() {
			err = nil
		}
		tried = true
		return err
	}, done: func() {
		w.drives--
		require.Len(w.t, w.inUse(), w.drives)
	}}
}

func (w *secondWorld) rebalance() secondCall {
	return secondCall{name: "rebalance", do: func(ctx context.Context) error {
		_, err := w.s.Rebalance(ctx, MoveOptions{})
		return err
	}}
}

func (w *secondWorld) compact() secondCall {
	return secondCall{name: "compact", do: func(ctx context.Context) error {
		_, err := w.s.Compact(ctx, MoveOptions{})
		return err
	}}
}

func (w *secondWorld) scrub() secondCall {
	return secondCall{name: "scrub", do: func(ctx context.Context) error {
		_, err := w.s.Scrub(ctx, ScrubOptions{})
		return err
	}}
}

// reopen closes the store while something is in its way, opens it while something still is, and
// then again.
func (w *secondWorld) reopen() secondCall {
	closed, clean := false, true
	return secondCall{name: "close and open", dark: true, do: func(ctx context.Context) error {
		if !closed {
			closed = true
			first := w.s.Close()
			if first != nil {
				clean = false
				w.note("  close: %v", first)
			}
			require.Equal(w.t, first, w.s.Close(), "closing twice is one close")
			_, err := w.s.Put(ctx, &skep.PutRequest{Scope: w.spaces[0].sc, Blocks: []skep.Block{w.spaces[0].block(0, 1)}})
			require.Error(w.t, err)
		} else {
			_ = w.s.Close() // when it had been opened
		}
		s, err := Open(ctx, w.o)
		if err == nil {
			w.s = s
		}
		return err
	}, done: func() {
		if !clean {
			w.forgiveCache()
		}
	}}
}

// reload changes what may be changed of an open store; what is refused changes nothing.
func (w *secondWorld) reload() secondCall {
	return secondCall{name: "reload", do: func(context.Context) error {
		bad := map[string][]EncryptionKey{"t": {{}}}
		requireKind(w.t, skep.Invalid, w.s.SetEncryptionKeys(bad))
		if err := w.s.SetEncryptionKeys(nil); err != nil {
			return err
		}
		requireKind(w.t, skep.Invalid, w.s.SetTenantBytes(map[string]int64{"t": -1}))
		return w.s.SetTenantBytes(map[string]int64{"t": 1 << 30})
	}}
}
