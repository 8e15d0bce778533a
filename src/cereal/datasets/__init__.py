"""Well-known datasets, ready to use."""

from .celeba import CelebADataset as CelebADataset
from .cifar import CIFAR10Dataset as CIFAR10Dataset
from .cifar import CIFAR100Dataset as CIFAR100Dataset
from .digits import DigitsDataset as DigitsDataset
from .mnist import EMNISTDataset as EMNISTDataset
from .mnist import FashionMNISTDataset as FashionMNISTDataset
from .mnist import KMNISTDataset as KMNISTDataset
from .mnist import MNISTDataset as MNISTDataset
from .mnist import MNISTDiskSource as MNISTDiskSource
from .series import DailyMinTemperaturesDataset as DailyMinTemperaturesDataset
from .series import SunspotsDataset as SunspotsDataset
