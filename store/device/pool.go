package device

import (
	"fmt"
	"github.com/skepkv/skep/store/internal/locks"
	"io"
)

// engine does one op, start to end, on the goroutine that calls it.
type engine interface {
	do(op *Op) error
	grow(c *core, size int64) error
	close() error
}

// pool runs ops on goroutines that live only while there is work, at most
// workers of them. It is the portable backend, and what the memory device runs
// on.
type pool struct {
	core
	engine  engine
	workers int

	mu struct {
		locks.Mutex[locks.DevicePool]
		waiting opList
		running int // goroutines
	}
}

func newPool(e engine, info Info, size int64, workers int, o Options) *pool {
	p := &pool{engine: e, workers: workers}
	info.QueueDepth = workers
	p.core.init(info, size, o.CloseTimeout)
	return p
}

func newFilePool(f *file, info Info, size int64, o Options) *pool {
	info.Backend = Pool
	return newPool(fileEngine{f}, info, size, o.Workers, o)
}

func (p *pool) Submit(ops []*Op) error {
	if len(ops) == 0 {
		return nil
	}
	if err := p.begin(ops); err != nil {
		return err
	}
	p.mu.Lock()
	for _, op := range ops {
		p.mu.waiting.push(op)
	}
	spawn := min(len(ops), p.workers-p.mu.running)
	p.mu.running += spawn
	p.mu.Unlock()
	for range spawn {
		go p.work()
	}
	return nil
}

// work does ops until none waits.
func (p *pool) work() {
	for {
		p.mu.Lock()
		op := p.mu.waiting.pop()
		if op == nil {
			p.mu.running--
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		p.finish(op, p.engine.do(op))
	}
}

func (p *pool) Grow(size int64) error { return p.engine.grow(&p.core, size) }

func (p *pool) Unwrap() Device { return nil }

func (p *pool) Close() error {
	return p.shutdown(p.refuseWaiting, p.engine.close, p)
}

// refuseWaiting ends the ops no worker has started.
func (p *pool) refuseWaiting() {
	for {
		p.mu.Lock()
		op := p.mu.waiting.pop()
		p.mu.Unlock()
		if op == nil {
			return
		}
		p.finish(op, ErrClosed)
	}
}

// fileEngine does ops with blocking system calls.
type fileEngine struct{ f *file }

func (e fileEngine) do(op *Op) error {
	switch op.Kind {
	case Read:
		return transfer(op, e.f.readv)
	case Write:
		return transfer(op, e.f.writev)
	default:
		return e.f.flush()
	}
}

// flush has the file system make durable what was written.
func (h *file) flush() error {
	for tries := 0; ; tries++ {
		if err := h.datasync(); !retriable(err) || tries >= maxStalls {
			return err
		}
	}
}

func (e fileEngine) grow(c *core, size int64) error {
	e.f.growMu.Lock()
	defer e.f.growMu.Unlock()
	return growFile(c, e.f, size)
}

func (e fileEngine) close() error {
	if err := e.f.close(); err != nil {
		return fmt.Errorf("device: close %s: %w", e.f.path, err)
	}
	return nil
}

// maxStalls is how often a transfer may be tried again without progress.
const maxStalls = 16

// transfer moves all of op with move, which may move less than it was asked for.
func transfer(op *Op, move func(bufs [][]byte, off int64) (int, error)) error {
	var p progress
	bufs := op.Bufs
	for {
		n, err := move(bufs, op.Offset+int64(p.done))
		again, err := p.advance(op, n, err)
		if !again {
			return err
		}
		bufs = skipBytes(op.Bufs, p.done)
	}
}

// progress is how far a transfer got, and how often it got no further.
type progress struct {
	done   int
	stalls int
}

// advance takes the outcome of one attempt and says whether to try again, from
// p.done on. A short transfer is continued at a multiple of Align, because
// O_DIRECT takes nothing else: what lies beyond is moved twice.
func (p *progress) advance(op *Op, n int, err error) (again bool, _ error) {
	if err != nil {
		p.stalls++
		return retriable(err) && p.stalls < maxStalls, err
	}
	if p.done+n >= op.total {
		return false, nil
	}
	if step := n &^ (Align - 1); n > 0 && step > 0 {
		p.done += step
		p.stalls = 0
		return true, nil
	}
	if p.stalls++; n > 0 && p.stalls < maxStalls {
		return true, nil
	}
	if op.Kind == Write {
		return false, io.ErrShortWrite
	}
	return false, io.ErrUnexpectedEOF // the file was cut behind our back
}
