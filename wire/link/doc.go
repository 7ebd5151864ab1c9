// Package link is one end of a connection of the protocol: frames in and out at a least rate, the descriptors that come
// with them on a Unix socket, checksums of what passes, and the errors of a connection that ends. Client and server
// (package wire) stand on it; what a frame holds is package frames'.
package link
