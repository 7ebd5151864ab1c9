package near

import "net"

// sendBuffer is what a connection may hold unsent, in bytes; the kernel doubles it. Of 64 KiB to 4 MiB
// the one with the least CPU per byte, for writes of 256 KiB and of 1 MiB.
const sendBuffer = 256 << 10

// Tune sets a connection up when its peer is on this machine, and leaves every other as it is: over
// a network the kernel knows best how much may be on its way.
func Tune(c net.Conn) {
	for under, ok := c.(interface{ NetConn() net.Conn }); ok; under, ok = c.(interface{ NetConn() net.Conn }) { // TLS
		c = under.NetConn()
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if peer, ok := tcp.RemoteAddr().(*net.TCPAddr); ok && peer.IP.IsLoopback() {
		_ = tcp.SetWriteBuffer(sendBuffer) // it works without, with more CPU
	}
}
