package deliver

import (
	"errors"
	"net/netip"
	"slices"
	"syscall"
)

// errAddress is the error of a dial to an address that webhooks do not go to. A recipient may choose where a request goes, and must
// not reach what only this machine can.
var errAddress = errors.New("the receiver's address is private or reserved, and allow_private is not set or does not cover it")

// reach is which addresses a connection may go to.
type reach int

const (
	reachPublic   reach = iota
	reachPrivate        // and private and loopback ones
	reachLoopback       // only these
)

// control is asked after names are resolved, for each address that is dialled, so a name that changes its mind between a check and a
// connection gains nothing.
func (r reach) control(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !r.allows(at.Addr()) {
		return errAddress
	}
	return nil
}

func (r reach) allows(ip netip.Addr) bool {
	ip = ip.Unmap()
	switch {
	case !ip.IsValid() || ip.Zone() != "" || within(ip, neverReached()...):
		return false
	case r == reachLoopback:
		return ip.IsLoopback()
	case ip.IsLoopback() || ip.IsPrivate() || within(ip, "100.64.0.0/10"):
		return r == reachPrivate
	case ip.Is6():
		return within(ip, "2000::/3")
	}
	return true
}

// neverReached lists what no receiver has: metadata services of clouds, link-local, multicast, unspecified, reserved and
// documentation addresses, and those of IPv6 that carry one of IPv4 for a gateway to unpack.
func neverReached() []string {
	return []string{
		"0.0.0.0/8", "169.254.0.0/16", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
		"224.0.0.0/4", "240.0.0.0/4", "100.100.100.200/32", "168.63.129.16/32",
		"::/128", "fd00:ec2::/32", "fe80::/10", "ff00::/8", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	}
}

func within(ip netip.Addr, prefixes ...string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return netip.MustParsePrefix(p).Contains(ip) })
}
