package bucket

import "sync/atomic"

// What the index takes of memory, about, in bytes.
const (
	objectMemory = 256 // of an object
	blockMemory  = 192 // of each of its blocks: 158 to 191 were measured
)

func memoryOf(blocks int) int64 { return objectMemory + int64(blocks)*blockMemory }

// held is the memory that the index takes, and may, and how many keys are remembered as deleted, and may.
type held struct {
	atomic.Int64
	most int64

	forgotten atomic.Int64
	forgets   int64
}

// room says whether so much more may be taken.
func (h *held) room(n int64) bool { return h.Load()+n <= h.most }

// take takes so much, where there is room.
func (h *held) take(n int64) bool {
	if h.Add(n) <= h.most {
		return true
	}
	h.Add(-n)
	return false
}
