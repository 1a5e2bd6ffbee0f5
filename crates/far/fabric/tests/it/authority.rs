//! Authorities that sign certificates, for tests.

use farfork_fabric::Certificates;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};

/// An authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// What a certificate says.
pub struct Signed {
    pub chain: String,
    pub key: String,
}

impl Authority {
    /// All have one name, so that not the name decides whose certificates are good.
    pub fn new() -> Authority {
        Authority::named("farfork test")
    }

    pub fn named(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names, changed by `change`.
    pub fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Signed {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let chain = params.signed_by(&key, &self.0).unwrap().pem();
        Signed { chain, key: key.serialize_pem() }
    }

    /// One that this authority signed, and that trusts `trusted`.
    pub fn node(&self, trusted: &Authority, names: &[&str]) -> Certificates {
        self.sign(names, |_| {}).with(trusted)
    }
}

impl Signed {
    pub fn with(&self, trusted: &Authority) -> Certificates {
        let (chain, key) = (self.chain.as_bytes(), self.key.as_bytes());
        Certificates::from_pem(chain, key, trusted.pem().as_bytes()).unwrap()
    }
}

/// It was good once.
pub fn expired(params: &mut CertificateParams) {
    (params.not_before, params.not_after) = (date_time_ymd(2001, 1, 1), date_time_ymd(2002, 1, 1));
}

/// It will be good.
pub fn not_yet_valid(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2999, 1, 1);
    params.not_after = date_time_ymd(3000, 1, 1);
}

/// It is for servers alone.
pub fn for_servers(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
}

/// It is for clients alone.
pub fn for_clients(params: &mut CertificateParams) {
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
}
