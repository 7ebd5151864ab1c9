package restore

import (
	"unsafe"

	"github.com/skepkv/skep/store/memory"
)

// inOrder gives the buffers a part was read into in the order of its bytes, which is not
// the order they were read in: reads go by device. It gives nil when they are not
// exactly the part, which then is not kept in memory.
func (ch *chunk) inOrder(pieces []piece, bufs []*memory.Buffer) []*memory.Buffer {
	out := make([]*memory.Buffer, 0, len(bufs))
	var off int64
	for i := range pieces {
		p := &pieces[i]
		b := bufferOf(bufs, p.mem)
		if p.off != off || b == nil {
			return nil
		}
		if off += int64(len(p.mem)); off < ch.at.Size && b.Len() != len(p.mem) {
			return nil
		}
		out = append(out, b)
	}
	if off != ch.at.Size || len(out) != len(bufs) {
		return nil
	}
	return out
}

// bufferOf is the buffer that begins where mem does.
func bufferOf(bufs []*memory.Buffer, mem []byte) *memory.Buffer {
	for _, b := range bufs {
		if unsafe.SliceData(b.Bytes()) == unsafe.SliceData(mem) {
			return b
		}
	}
	return nil
}
