//go:build cuda && cgo && linux

package cuda

/*
#include <stdint.h>
#include <stdlib.h>
void skep_fake(const char *what, uint64_t a, uint64_t b);
int skep_fake_left(void);
*/
import "C"

import (
	"unsafe"

	"github.com/skepkv/skep/gpu"
)

// fake makes the fake driver fail, for tests: it implements gputest.Faults. Calls do nothing
// on a driver.
type fake struct{}

func (fake) call(what string, a, b uint64) {
	s := C.CString("skep_fake_" + what)
	defer C.free(unsafe.Pointer(s))
	C.skep_fake(s, C.uint64_t(a), C.uint64_t(b))
}

func (f fake) seed(seed uint64)          { f.call("seed", seed, 0) }
func (f fake) FailAlloc(device, nth int) { f.call("fail_alloc", uint64(device), uint64(nth)) }
func (f fake) FailPin(device, nth int)   { f.call("fail_pin", uint64(device), uint64(nth)) }
func (f fake) Fail(device int)           { f.call("fail", uint64(device), 214) } // an uncorrectable memory error
func (f fake) Hang(device int)           { f.call("hang", uint64(device), 0) }
func (f fake) Flip(device int)           { f.call("flip", uint64(device), 0) }

func (f fake) Revoke(m gpu.Memory, pieces int) { f.call("revoke", m.(*memory).at, uint64(pieces)) }

// reset ends all there is on the fake driver and says how many things nobody gave back.
func (fake) reset() int { return int(C.skep_fake_left()) }
