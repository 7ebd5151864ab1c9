//go:build iouring && linux

package device

// flush ends flushes until none waits: those that wait together by one system call.
func (r *ring) flush() {
	for {
		r.mu.Lock()
		list := r.mu.flushes
		r.mu.flushes = opList{}
		r.mu.flushing = list.head != nil
		r.mu.Unlock()
		if list.head == nil {
			return
		}
		err := r.file.flush()
		for op := list.pop(); op != nil; op = list.pop() {
			r.finish(op, err)
		}
	}
}
