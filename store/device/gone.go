package device

import (
	"fmt"
)

// Gone stands for a drive that is not there: it has the place and the size of one, and
// every op ends with an error that Is ErrGone. A store opens with it in the place of a
// drive it has lost, so that nothing else needs to know.
type Gone struct {
	core
	why error
}

// NewGone stands for the drive of size bytes that was at path; why says what became of
// it.
func NewGone(path, serial string, size int64, why error) *Gone {
	g := &Gone{why: ErrGone}
	if why != nil {
		g.why = fmt.Errorf("%w: %w", ErrGone, why)
	}
	g.core.init(Info{Path: path, Serial: serial, Backend: "gone", Reason: g.why.Error()}, size&^(Align-1), 0)
	return g
}

// Submit takes the ops and fails them.
func (g *Gone) Submit(ops []*Op) error {
	if len(ops) == 0 {
		return nil
	}
	if err := g.begin(ops); err != nil {
		return err
	}
	list := append([]*Op(nil), ops...)
	go func() { // Done never runs inside Submit; counted in flight by its ops
		for _, op := range list {
			g.finish(op, g.why)
		}
	}()
	return nil
}

// Grow fails: there is nothing to enlarge.
func (g *Gone) Grow(int64) error { return g.why }

func (g *Gone) Unwrap() Device { return nil }

func (g *Gone) Close() error { return g.shutdown(nil, func() error { return nil }, g) }
