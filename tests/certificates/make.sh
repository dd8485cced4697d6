#!/bin/sh
# Makes the certificates of this folder anew: good from 2020 to 2120, and for tests alone. They are kept because
# a machine that runs the tests need not have the openssl command.
#   ca.pem                  the authority; other-ca.pem is another
#   server.pem              localhost, 127.0.0.1, 127.0.0.2 and ::1, with its key server.key
#   named.pem               brokers.example only, with the same key
#   expired.pem             as server.pem, over since 2021
#   future.pem              as server.pem, not valid before 2100, of the authority future-ca.pem
#   client.pem              certificate and key of a client in one file
#   client.crt, client.key  the same in two; locked.key is the key under password "rocketpoll"
#   ed25519.key             a key of another kind, to none of the certificates
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
: > "$work/index.txt"
cat > "$work/ca.cnf" <<END
[ca]
default_ca = tests
[tests]
database = $work/index.txt
new_certs_dir = $work
rand_serial = yes
unique_subject = no
default_md = sha256
policy = names
[names]
commonName = supplied
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
END

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

signed() { # FILE KEY NAME FROM TO MORE...
    file=$1 key=$2 name=$3 from=$4 to=$5
    shift 5
    openssl req -new -config /dev/null -key "$key" -subj "/CN=$name" -out "$work/request"
    openssl ca -batch -notext -config "$work/ca.cnf" -in "$work/request" -out "$file" \
        -startdate "${from}0101000000Z" -enddate "${to}0101000000Z" "$@"
}

authority() { # FILE NAME
    key "$work/$1.key"
    signed "$1.pem" "$work/$1.key" "$2" 2020 2120 -selfsign -keyfile "$work/$1.key" -extensions authority
}

of_ca() { # FILE KEY NAME FROM TO EXTENSION
    printf '%s\nauthorityKeyIdentifier=keyid\n' "$6" > "$work/extensions"
    signed "$1" "$2" "$3" "$4" "$5" -cert "$issuer.pem" -keyfile "$work/$issuer.key" -extfile "$work/extensions"
}

issuer=ca
authority ca "rocketpoll tests"
authority other-ca "somebody else"
key server.key
here="subjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2,IP:::1"
of_ca server.pem server.key localhost 2020 2120 "$here"
of_ca named.pem server.key brokers.example 2020 2120 "subjectAltName=DNS:brokers.example"
of_ca expired.pem server.key localhost 2020 2021 "$here"
key client.key
of_ca client.crt client.key client 2020 2120 "extendedKeyUsage=clientAuth"
cat client.crt client.key > client.pem
openssl pkcs8 -topk8 -in client.key -out locked.key -passout pass:rocketpoll
openssl genpkey -algorithm ED25519 -out ed25519.key
issuer=future-ca
authority future-ca "rocketpoll tests of the future"
of_ca future.pem server.key localhost 2100 2120 "$here"
