//go:build !(iouring && linux)

package device

import "runtime"

func newRing(*file, Info, int64, Options) (Device, error) {
	reason := "built without tag iouring"
	if runtime.GOOS != "linux" {
		reason = "not on " + runtime.GOOS
	}
	return nil, &UnavailableError{Backend: IOUring, Reason: reason}
}
