//go:build cuda && cgo && linux

package cuda

/*
#include "driver.h"
#cgo LDFLAGS: -ldl
*/
import "C"

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/skepkv/skep"
)

var load = sync.OnceFunc(func() { C.skep_load() })

// result is a CUresult.
type result int

const (
	success      result = 0
	invalidValue result = 1
	outOfMemory  result = 2
	badHandle    result = 400
	notReady     result = 600
	peerTwice    result = 704
	notSupported result = C.SKEP_NOT_SUPPORTED
)

func (r result) Error() string {
	if s := C.skep_error(C.int(r)); s != nil {
		return fmt.Sprintf("%s (%d)", C.GoString(s), int(r))
	}
	return fmt.Sprintf("CUDA error %d", int(r))
}

// resultOf is the number in an error of cu, whose type is cu's own.
func resultOf(err error) result {
	for ; err != nil; err = errors.Unwrap(err) {
		if v := reflect.ValueOf(err); v.CanInt() {
			return result(v.Int())
		}
	}
	return success
}

// lasting says that the driver will give this error from now on, whatever is called.
func (r result) lasting() bool {
	switch {
	case r == success, r == notReady, r == invalidValue, r == outOfMemory, r == badHandle, r == peerTwice, r == notSupported:
		return false
	case r == 3, r == 4, r == 46, r == 101, r == 201, r == 214, r == 220, r == 709, r == 710, r == 999:
		return true
	case r >= 700 && r <= 703, r >= 714 && r <= 719:
		return true
	}
	return false
}

// failure makes r an error of an operation: nil for success.
func failure(op string, r result) error {
	e := &skep.Error{Op: op, Kind: skep.Other, Err: r}
	switch {
	case r == success:
		return nil
	case r == outOfMemory:
		e.Kind = skep.NoMemory
	case r == notSupported:
		e.Kind = skep.Unsupported
	case r == invalidValue, r == badHandle:
		e.Kind = skep.Invalid
	case r.lasting():
		e.Kind = skep.DeviceFailed
	}
	return e
}

// in calls f with the device's context current on its thread.
func (d *device) in(f func() error) result {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.SetCurrentContext(d.context); err != nil {
		return resultOf(err)
	}
	return resultOf(f())
}

// raw is the pointer in one of cu's handles, which are structs of one pointer.
func raw[T cu.CUContext | cu.Stream](h T) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&h))
}

func (d *device) c() unsafe.Pointer { return raw(d.context) }
